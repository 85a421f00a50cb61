#!/usr/bin/env bash
# The stepwise rollout of the walk-through: one of four game servers, a pause, a second one, a timed pause, a hook that fails, and continuing anyway.
# Runs against the cluster that KUBECONFIG names, with the hook server HOOK_SERVER; `make demo` brings both. PAUSE and GRACE shorten the walk-through's 60 and 30 seconds.
set -euo pipefail
cd "$(dirname "$0")"

PAUSE="${PAUSE:-10}" GRACE="${GRACE:-5}"
name=test-gamedeployment
watcher= server=
log="$(mktemp)"
# Everything that was started ends with the script.
trap 'for pid in $watcher $server; do kill "$pid" 2>/dev/null || true; done; rm -f "$log"' EXIT

say() { printf '\n\033[1m%s\033[0m\n' "$*" | if [ -t 1 ]; then cat; else sed $'s/\033\\[[0-9]*m//g'; fi; }

show() { printf '$ %s\n' "$*"; "$@"; }

# Prints the table's rows as they change, until every "path=value" given holds.
follow() {
  kubectl get gamedeployment "$name" --watch &
  watcher=$!
  for state in "$@"; do
    kubectl wait --for=jsonpath="{.status.${state%%=*}}=${state#*=}" "gamedeployment/$name" --timeout=300s >/dev/null
  done
  kill "$watcher" && wait "$watcher" 2>/dev/null || true
  watcher=
}

# What the walk-through shows: the step, the pause and its reason.
state() {
  kubectl get gamedeployment "$name" -o jsonpath='  paused: {.spec.updateStrategy.paused}
  currentStepIndex: {.status.currentStepIndex}
  pauseConditions: {.status.pauseConditions}
  canary: {.status.canary}
'
}

resume() {
  show kubectl patch gamedeployment "$name" --type=json -p='[{"op": "replace", "path": "/spec/updateStrategy/paused", "value":false}]'
}

say "0. A web server for the hook: it says that bryan is 45"
"$HOOK_SERVER" --listen "$(hostname -I | cut -d' ' -f1):0" >"$log" &
server=$!
for _ in $(seq 50); do grep -q listening "$log" && break; sleep 0.1; done
url="http://$(sed -n 's/^listening on //p' "$log")"
echo "$url"

say "1. The hook wants an age below 30, so it will fail; four game servers are created"
echo '$ kubectl apply -f hooktemplate.yaml'
sed "s|http://1.1.1.1:9091|$url|" hooktemplate.yaml | kubectl apply -f -
echo '$ kubectl apply -f gamedeployment.yaml'
sed "s|duration: 60|duration: $PAUSE|; s|gracePeriodSeconds: 30|gracePeriodSeconds: $GRACE|" gamedeployment.yaml | kubectl apply -f -
follow readyReplicas=4
show kubectl get gamedeployment

say "2. A new image: step 0 updates one server in place, step 1 pauses until the rollout is resumed"
show kubectl patch gamedeployment "$name" --type=json \
  -p='[{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value":"python:3.5"}]'
follow currentStepIndex=1 'pauseConditions[0].reason=PausedByCanaryPauseStep'
show kubectl get gamedeployment
state

say "3. Resume: step 2 updates a second one, step 3 pauses for $PAUSE seconds"
resume
follow currentStepIndex=3 'pauseConditions[0].reason=PausedByCanaryPauseStep'
show kubectl get gamedeployment
state

say "4. The time is over: step 4 asks the hook, which fails, and the rollout pauses"
follow currentStepIndex=4 'pauseConditions[0].reason=PausedByStepBasedHook'
state
show kubectl get hookrun
kubectl get hookrun -o jsonpath='{range .items[*].status.metricResults[*]}  {.name}: {.phase}, {.message}
{end}'

say "5. Resume anyway: the last two are drained, restart, and serve again"
resume
follow updatedReadyReplicas=4 currentStepIndex=5
show kubectl get gamedeployment
say "   The pods are the same ones: each was restarted once"
show kubectl get pods

row="$(kubectl get gamedeployment "$name" --no-headers | awk '{ print $2, $3, $4, $5, $6 }')"
[ "$row" = "4 4 4 4 4" ] || { echo "expected 4 4 4 4 4, got $row" >&2; exit 1; }
say "Done: every server is updated, and no pod was replaced."
