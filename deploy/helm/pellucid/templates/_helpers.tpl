{{- /* Begins all names. */ -}}
{{- define "pellucid.name" -}}
{{ .Release.Name | trunc 30 | trimSuffix "-" }}
{{- end }}

{{- /* Labels by which pods are found; call with (list $ COMPONENT). */ -}}
{{- define "pellucid.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: pellucid
app.kubernetes.io/instance: {{ include "pellucid.name" $root }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- /* Labels of pods; call with (list $ COMPONENT). */ -}}
{{- define "pellucid.podLabels" -}}
{{ include "pellucid.selector" . }}
app.kubernetes.io/part-of: pellucid
pellucid/service: {{ include "pellucid.name" (index . 0) }}-{{ index . 1 }}
{{- end }}

{{- /* Labels of other objects; call with (list $ COMPONENT). */ -}}
{{- define "pellucid.labels" -}}
{{- $root := index . 0 -}}
{{ include "pellucid.selector" . }}
app.kubernetes.io/part-of: pellucid
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ $root.Chart.Name }}-{{ $root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- /* Metadata of an object; call with (list $ COMPONENT [SUFFIX]). */ -}}
{{- define "pellucid.metadata" -}}
{{- $suffix := index . 1 -}}
{{- if gt (len .) 2 }}{{ $suffix = index . 2 }}{{ end -}}
name: {{ include "pellucid.name" (index . 0) }}-{{ $suffix }}
labels:
  {{- include "pellucid.labels" . | nindent 2 }}
{{- end }}

{{- /* Annotations by which a Prometheus without operator finds a pod; call with (list $ PORT). */ -}}
{{- define "pellucid.scraped" -}}
{{- if not (index . 0).Values.operators.prometheus }}
annotations:
  prometheus.io/scrape: "true"
  prometheus.io/port: {{ index . 1 | quote }}
{{- end }}
{{- end }}

{{- define "pellucid.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag }}
{{- end }}

{{- /* What all pods have besides containers and volumes. */ -}}
{{- define "pellucid.pod" -}}
automountServiceAccountToken: false
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "pellucid.tmp" -}}
- name: tmp
  emptyDir: {sizeLimit: 64Mi}
{{- end }}

{{- /* Variables of a process with telemetry; call with (list $ COMPONENT). Metrics are scraped, not sent as well. */ -}}
{{- define "pellucid.environment" -}}
{{- $root := index . 0 -}}
- {name: K8S_POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
- {name: K8S_POD_UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
- {name: K8S_NAMESPACE_NAME, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
- {name: K8S_NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
- name: OTEL_SERVICE_NAME
  value: {{ include "pellucid.name" $root }}-{{ index . 1 }}
- name: OTEL_RESOURCE_ATTRIBUTES
  value: k8s.pod.name=$(K8S_POD_NAME),k8s.pod.uid=$(K8S_POD_UID),k8s.namespace.name=$(K8S_NAMESPACE_NAME),k8s.node.name=$(K8S_NODE_NAME)
{{- if $root.Values.collector.enabled }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: http://{{ include "pellucid.name" $root }}-agent-collector:4318
- name: OTEL_METRICS_EXPORTER
  value: none
{{- end }}
{{- end }}

{{- /* Variables from the existing secret. */ -}}
{{- define "pellucid.secrets" -}}
{{- $secret := .Values.durable.secret | default (include "pellucid.name" .) -}}
- name: PELLUCID_STORE
  valueFrom: {secretKeyRef: {name: {{ $secret }}, key: store}}
- name: PELLUCID_QUEUE
  valueFrom: {secretKeyRef: {name: {{ $secret }}, key: queue, optional: true}}
- name: PELLUCID_CALL_KEYS
  valueFrom: {secretKeyRef: {name: {{ $secret }}, key: call-keys, optional: true}}
{{- end }}

{{- define "pellucid.apiToken" -}}
- name: PELLUCID_API_TOKEN
  valueFrom: {secretKeyRef: {name: {{ .Values.durable.secret | default (include "pellucid.name" .) }}, key: api-token}}
{{- end }}

{{- /* A budget that lets one pod go at a time; call with (list $ COMPONENT). */ -}}
{{- define "pellucid.disruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "pellucid.metadata" . | nindent 2 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      {{- include "pellucid.selector" . | nindent 6 }}
{{- end }}
