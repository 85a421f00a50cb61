#!/usr/bin/env bash
# Prints all objects that the operator stores for workloads.yaml, in the middle of things. Recorded once per release:
#   localkube run --fake-nodes 3 --operator -- planner/tests/compat/record.sh > planner/tests/compat/0.2.0.yaml
set -euo pipefail
cd "$(dirname "$0")"

until_status() {
  kubectl wait --for=jsonpath="{.status.$2}=$3" "gamedeployment/$1" --timeout=120s >&2
}

kubectl apply -f workloads.yaml >&2
for name in grace canary protected; do until_status "$name" availableReplicas 3; done
for name in grace canary; do
  kubectl patch gamedeployment "$name" --type=json \
    -p='[{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "game:2"}]' >&2
done
kubectl patch gamedeployment protected --type=merge -p='{"spec": {"replicas": 2}}' >&2
until_status grace updatedReplicas 1
until_status grace readyReplicas 2
until_status canary 'pauseConditions[0].reason' PausedByStepBasedHook
until_status protected 'preDeleteHookCondition[0].phase' Running
for name in grace canary protected; do
  until_status "$name" observedGeneration "$(kubectl get gamedeployment "$name" -o jsonpath='{.metadata.generation}')"
done
kubectl get gamedeployments,hooktemplates,hookruns,pods,controllerrevisions,poddisruptionbudgets -o yaml
