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
