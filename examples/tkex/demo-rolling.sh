#!/usr/bin/env bash
# The rolling update of the walk-through: 8 pods, 5 of them updated, then all. Runs against the cluster that KUBECONFIG names; `make demo ROLLING=1` brings one.
set -euo pipefail
cd "$(dirname "$0")"

watcher=
trap '[ -z "$watcher" ] || kill "$watcher" 2>/dev/null || true' EXIT

say() { printf '\n\033[1m%s\033[0m\n' "$*" | if [ -t 1 ]; then cat; else sed $'s/\033\\[[0-9]*m//g'; fi; }

show() { printf '$ %s\n' "$*"; "$@"; }

# Prints the table's rows as they change, until the operator says that nothing is left to do.
follow() {
  kubectl get gamedeployment test-gamedeployment --watch &
  watcher=$!
  kubectl wait --for=condition=Progressing=False gamedeployment/test-gamedeployment --timeout=300s >/dev/null
  kill "$watcher" && wait "$watcher" 2>/dev/null || true
  watcher=
}

say "1. Eight game servers"
echo '$ kubectl apply -f rolling-update.yaml'
# Fake nodes start a pod in no time; two seconds let people see something.
sed 's|^    metadata:$|&\n      annotations: {localkube/start-after: 2s}|' rolling-update.yaml | kubectl apply -f -
follow
show kubectl get pods
show kubectl get gamedeployment

say "2. A new image: partition 3 keeps three pods on the old one"
show kubectl patch gamedeployment test-gamedeployment --type=json \
  -p='[{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value":"python:latest"}]'
follow
show kubectl get pods
show kubectl get gamedeployment

say "3. Partition 0: the rest follows"
show kubectl patch gamedeployment test-gamedeployment --type=merge -p '{"spec":{"updateStrategy":{"partition":0}}}'
follow
show kubectl get gamedeployment -o wide

row="$(kubectl get gamedeployment test-gamedeployment --no-headers | awk '{ print $2, $3, $4, $5, $6 }')"
[ "$row" = "8 8 8 8 8" ] || { echo "expected 8 8 8 8 8, got $row" >&2; exit 1; }
say "Done: every server is updated."
