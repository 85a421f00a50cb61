{{- define "gameplane.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "gameplane.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains (include "gameplane.name" .) .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "gameplane.name" .) | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "gameplane.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "gameplane.fullname" .) }}
{{- end }}

{{- define "gameplane.lease" -}}
{{- .Values.leaderElection.name | default "gameplane-operator" }}
{{- end }}

{{- define "gameplane.image" -}}
{{- $image := printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- if .Values.image.registry }}{{ .Values.image.registry }}/{{ end }}{{ $image }}
{{- end }}

{{- define "gameplane.selector" -}}
app.kubernetes.io/name: {{ include "gameplane.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "gameplane.labels" -}}
{{ include "gameplane.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/platform: bk-bcs
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* Users to whom the policies do not apply, as a list in CEL: the operator, the controllers of Kubernetes that clean up, and hooks.exemptUsers. */}}
{{- define "gameplane.exemptUsers" -}}
{{- $operator := printf "system:serviceaccount:%s:%s" .Release.Namespace (include "gameplane.serviceAccount" .) }}
{{- $own := list $operator "system:kube-controller-manager" "system:serviceaccount:kube-system:namespace-controller" "system:serviceaccount:kube-system:generic-garbage-collector" }}
{{- $quoted := list }}
{{- range concat $own .Values.hooks.exemptUsers }}
{{- $quoted = append $quoted (printf "'%s'" .) }}
{{- end }}
{{- printf "[%s]" (join ", " $quoted) }}
{{- end }}

{{/* Whether a field is unchanged, in CEL. */}}
{{- define "gameplane.unchanged" -}}
has(object.{{ . }}) == has(oldObject.{{ . }}) && (!has(object.{{ . }}) || object.{{ . }} == oldObject.{{ . }})
{{- end }}

{{/* Whether a HookRun looks like one that the operator created, in CEL. */}}
{{- define "gameplane.isOperatorsRun" -}}
(has({{ . }}.metadata.labels) && ['hookrun-type', 'pod-uid', 'hook-template', 'target-revision', 'attempt', 'instance-id', 'workload-revision', 'canary-step-index'].exists(label, label in {{ . }}.metadata.labels)) || (has({{ . }}.metadata.ownerReferences) && {{ . }}.metadata.ownerReferences.exists(owner, has(owner.controller) && owner.controller && owner.apiVersion.startsWith('tkex.tencent.com/')))
{{- end }}
