{{/* What all objects of a release have in common, and Services and policies find its pods by. */}}
{{- define "kvgate.labels" -}}
app.kubernetes.io/name: kvgate
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
