{{/* Labels that select the pod, and the ones of everything. */}}
{{- define "tarry.selector" -}}
app.kubernetes.io/name: tarry
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "tarry.labels" -}}
{{ include "tarry.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{/* Ports of the doors that are open, by name, as JSON. */}}
{{- define "tarry.ports" -}}
{{- $ports := dict "http" 8080 -}}
{{- if .Values.doors.matrix }}{{ $_ := set $ports "matrix" 8008 }}{{ end -}}
{{- if .Values.doors.pulsar }}{{ $_ := set $ports "pulsar" 6650 }}{{ end -}}
{{- if .Values.doors.dapr }}{{ $_ := set $ports "dapr-http" 3500 }}{{ $_ := set $ports "dapr-grpc" 50001 }}{{ end -}}
{{ toJson $ports }}
{{- end }}
