{{/* Name of everything in a release. */}}
{{- define "kerf.name" -}}
{{- if contains "kerf" .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}{{ else }}{{ printf "%s-kerf" .Release.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "kerf.selector" -}}
app.kubernetes.io/name: kerf
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "kerf.labels" -}}
{{ include "kerf.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "kerf.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "kerf.name" .) }}
{{- end }}

{{- define "kerf.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* The settings file: what the values say, and what the way of running demands. */}}
{{- define "kerf.config" -}}
{{- $config := deepCopy .Values.config }}
{{- $server := dict "port" 8888 "host" (ternary "127.0.0.1" "0.0.0.0" (eq .Values.mode "scheduler")) }}
{{- if include "kerf.tls.secret" . }}
{{- $server = merge $server (dict "tls_cert_file" "/etc/kerf-tls/tls.crt" "tls_key_file" "/etc/kerf-tls/tls.key" "tls_client_ca_file" "/etc/kerf-tls/ca.crt") }}
{{- end }}
{{- if .Values.access.tokensSecret }}
{{- $config = mergeOverwrite (dict "access" (dict "token_file" "/etc/kerf-tokens/tokens")) $config }}
{{- end }}
{{- if .Values.model.volume }}
{{- $config = mergeOverwrite (dict "model" (dict "path" "/etc/kerf-model")) $config }}
{{- end }}
{{- /* In mode scheduler Kerf decides exactly while the kube-scheduler of its pod holds the scheduler's lease. */}}
{{- $election := dict "mode" (ternary "scheduler" "own" (eq .Values.mode "scheduler")) "namespace" .Release.Namespace "lease" (include "kerf.name" .) }}
{{- $queue := dict "enabled" .Values.queue.enabled "pipelines" .Values.queue.pipelines }}
{{- $config := mergeOverwrite (dict "server" $server "leader_election" $election "queue" $queue) $config }}
{{- toYaml $config }}
{{- end }}

{{- define "kerf.schedulerConfig" -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: true
  # A lease of its own: by the default name it would wait for the cluster's own kube-scheduler to end.
  resourceName: {{ include "kerf.name" . }}
  resourceNamespace: {{ .Release.Namespace }}
# No kubeconfig: the pod's service account.
clientConnection:
  # The defaults of 50 and 100 would limit kube-scheduler, not Kerf, in a burst of pods.
  qps: 1000
  burst: 2000
percentageOfNodesToScore: {{ .Values.scheduler.percentageOfNodesToScore }}
profiles:
  - schedulerName: {{ .Values.scheduler.name }}
extenders:
  {{- include "kerf.extenders" (list . "http://127.0.0.1:8888" nil) | nindent 2 }}
{{- end }}

{{/* A probe of Kerf on loopback: runs inside the container, since nobody else can reach the port. The path, and whether by TLS. */}}
{{- define "kerf.probe" -}}
exec:
  command:
    - python
    - -ISc
    - |
      {{- if .tls }}
      import http.client, ssl, sys
      kerf = http.client.HTTPSConnection("127.0.0.1", 8888, timeout=2, context=ssl._create_unverified_context())
      {{- else }}
      import http.client, sys
      kerf = http.client.HTTPConnection("127.0.0.1", 8888, timeout=2)
      {{- end }}
      kerf.request("GET", sys.argv[1])
      sys.exit(kerf.getresponse().status != 200)
    - {{ .path }}
{{- end }}

{{/* Kerf's container. */}}
{{- define "kerf.container" -}}
name: kerf
image: {{ include "kerf.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args: [serve, --config=/etc/kerf/kerf.yaml]
{{- with .Values.env }}
env:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if eq .Values.mode "service" }}
ports:
  - name: http
    containerPort: 8888
{{- end }}
startupProbe:
  {{- include "kerf.probe" (dict "tls" (include "kerf.tls.secret" .) "path" (ternary "/syncz" "/healthz" (eq .Values.mode "scheduler"))) | nindent 2 }}
  periodSeconds: 1
  timeoutSeconds: 5
  failureThreshold: 120
readinessProbe:
  # Beside a kube-scheduler a standby is as it should be; behind a Service only the leader may be called.
  {{- include "kerf.probe" (dict "tls" (include "kerf.tls.secret" .) "path" (ternary "/syncz" "/readyz" (eq .Values.mode "scheduler"))) | nindent 2 }}
  periodSeconds: {{ ternary 10 1 (eq .Values.mode "scheduler") }}
  timeoutSeconds: 5
  failureThreshold: {{ ternary 3 1 (eq .Values.mode "scheduler") }}
livenessProbe:
  {{- include "kerf.probe" (dict "tls" (include "kerf.tls.secret" .) "path" "/healthz") | nindent 2 }}
  periodSeconds: 15
  timeoutSeconds: 5
  failureThreshold: 4
resources:
  {{- toYaml .Values.resources | nindent 2 }}
securityContext:
  {{- include "kerf.restricted" . | nindent 2 }}
volumeMounts:
  - name: config
    mountPath: /etc/kerf
    readOnly: true
  {{- if include "kerf.tls.secret" . }}
  - name: tls
    mountPath: /etc/kerf-tls
    readOnly: true
  {{- end }}
  {{- if .Values.model.volume }}
  - name: model
    mountPath: /etc/kerf-model
    readOnly: true
  {{- end }}
  {{- if .Values.access.tokensSecret }}
  - name: tokens
    mountPath: /etc/kerf-tokens
    readOnly: true
  {{- end }}
{{- end }}

{{- define "kerf.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Whether pods are opted into the queue by the webhook; "" for no. */}}
{{- define "kerf.queue.optIn" -}}
{{- $by := .Values.queue.optIn }}
{{- if and .Values.queue.enabled (or $by.namespaces $by.pods $by.genius) }}yes{{ end }}
{{- end }}

{{/* Whether the API server asks Kerf about anything; "" for no. */}}
{{- define "kerf.webhook.wanted" -}}
{{- if or (include "kerf.queue.optIn" .) .Values.inject.enabled }}yes{{ end }}
{{- end }}

{{- define "kerf.webhook.name" -}}
{{ include "kerf.name" . }}-webhook
{{- end }}

{{- define "kerf.webhook.secret" -}}
{{ .Values.webhook.tls.secretName | default (include "kerf.webhook.name" .) }}
{{- end }}

{{- define "kerf.webhook.selector" -}}
app.kubernetes.io/name: kerf-webhook
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "kerf.webhook.labels" -}}
{{ include "kerf.webhook.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "kerf.webhook.annotations" -}}
# With cert-manager: fills caBundle from the Certificate of that name. Without it, nobody reads this.
cert-manager.io/inject-ca-from: {{ .Release.Namespace }}/{{ include "kerf.webhook.name" . }}
{{- end }}

{{/* Certificate, key and CA that the chart makes: once for a release, in base64 as YAML. */}}
{{- define "kerf.webhook.pair" -}}
{{- if not (hasKey .Values "madePair") }}
{{- $name := include "kerf.webhook.name" . }}
{{- $kept := lookup "v1" "Secret" .Release.Namespace $name }}
{{- $pair := dict }}
{{- if and $kept $kept.data }}
{{- $pair = pick $kept.data "tls.crt" "tls.key" "ca.crt" }}
{{- else }}
{{- $ca := genCA (printf "%s-ca" $name) 3650 }}
{{- $service := printf "%s.%s.svc" $name .Release.Namespace }}
{{- $made := genSignedCert $service nil (list $service) 3650 $ca }}
{{- $pair = dict "tls.crt" (b64enc $made.Cert) "tls.key" (b64enc $made.Key) "ca.crt" (b64enc $ca.Cert) }}
{{- end }}
{{- $_ := set .Values "madePair" $pair }}
{{- end }}
{{- toYaml .Values.madePair }}
{{- end }}

{{/* By which CA the API server knows the webhook: given, made by the chart, or left for cert-manager to fill in. */}}
{{- define "kerf.webhook.bundle" -}}
{{- $tls := .Values.webhook.tls }}
{{- if or $tls.secretName $tls.issuer.name }}{{ $tls.caBundle }}{{ else }}{{ index (include "kerf.webhook.pair" . | fromYaml) "ca.crt" }}{{ end }}
{{- end }}

{{/* What all webhooks have in common: the root context, and the path that answers. */}}
{{- define "kerf.webhook.call" -}}
{{- $root := index . 0 -}}
rules:
  - apiGroups: [""]
    apiVersions: [v1]
    resources: [pods]
    operations: [CREATE]
    scope: Namespaced
clientConfig:
  service: {namespace: {{ $root.Release.Namespace }}, name: {{ include "kerf.webhook.name" $root }}, path: {{ index . 1 }}, port: 443}
  caBundle: {{ include "kerf.webhook.bundle" $root | quote }}
admissionReviewVersions: [v1]
sideEffects: None
# A pod that Kerf can't be asked about is created as it is.
failurePolicy: Ignore
timeoutSeconds: {{ $root.Values.webhook.timeoutSeconds }}
{{- end }}

{{/* Texts as a list of CEL's. */}}
{{- define "kerf.policy.list" -}}
{{- $quoted := list }}
{{- range . }}{{ $quoted = append $quoted (printf "'%s'" .) }}{{ end -}}
[{{ join ", " $quoted }}]
{{- end }}

{{/* Annotations that Kerf reads back, and nobody else may write: of an assignment, of the fence, of the queue. */}}
{{- define "kerf.policy.kerfs" -}}
- kerf.dev/assigned-gpus
- kerf.dev/assigned-uuids
- kerf.dev/assigned-share
- kerf.dev/assigned-memory-mib
- kerf.dev/assigned-model
- kerf.dev/assigned-by
- kerf.dev/epoch
- kerf.dev/epoch-{{ (include "kerf.config" . | fromYaml).leader_election.lease }}
- kerf.dev/sealed
- kerf.dev/planned-node
- kerf.dev/planned-by
- kerf.dev/nomination-lost
{{- end }}

{{- define "kerf.policy.hami" -}}
- hami.io/vgpu-devices-allocated
- hami.io/vgpu-devices-to-allocate
- hami.io/vgpu-node
- hami.io/vgpu-time
- hami.io/bind-phase
- hami.io/bind-time
{{- end }}

{{- define "kerf.policy.gpushare" -}}
- ALIYUN_COM_GPU_MEM_IDX
- ALIYUN_COM_GPU_MEM_POD
- ALIYUN_COM_GPU_MEM_DEV
- ALIYUN_COM_GPU_MEM_ASSIGNED
- ALIYUN_COM_GPU_MEM_ASSUME_TIME
{{- end }}

{{- define "kerf.policy.asked" -}}
- kerf.dev/gpu-count
- kerf.dev/gpu-share
- kerf.dev/gpu-memory-each
- kerf.dev/gpu-memory-total
- kerf.dev/gpu-model
- kerf.dev/gpu-model-exclude
- kerf.dev/gpu-uuid
- kerf.dev/gpu-uuid-exclude
{{- end }}

{{- define "kerf.policy.askedLabels" -}}
- genius/gpu-number
- genius/gpu-memory-each
- genius/gpu-memory-total
- genius/gpu-model
{{- end }}
