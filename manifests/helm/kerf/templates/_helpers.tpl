{{/* Name of a release's objects: the Deployment, its Lease, the policies; the webhook's has a suffix. */}}
{{- define "kerf.name" -}}
{{- $part := .Values.nameOverride | default .Chart.Name }}
{{- $name := ternary .Release.Name (printf "%s-%s" .Release.Name $part) (contains $part .Release.Name) }}
{{- .Values.fullnameOverride | default $name | trunc 52 | trimSuffix "-" }}
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

{{/* Subjects with Kerf's rights: its service account, and users for Kerf as a static pod, which can have none. */}}
{{- define "kerf.subjects" -}}
- kind: ServiceAccount
  name: {{ include "kerf.serviceAccount" . }}
  namespace: {{ .Release.Namespace }}
{{- range .Values.rbac.users }}
- kind: User
  apiGroup: rbac.authorization.k8s.io
  name: {{ . }}
{{- end }}
{{- end }}

{{- define "kerf.image" -}}
{{- if not .Values.image.repository }}
{{- fail "image.repository is not set: build the image (docker build -t REGISTRY/kerf:0.1.0 .), push it, and add --set image.repository=REGISTRY/kerf" }}
{{- end -}}
{{ include "kerf.reference" (list . .Values.image) }}
{{- end }}

{{/* Image reference. Arguments: the root context; repository, tag and digest. A tag overrides the published chart's digest:
     it is for images of the user's own. */}}
{{- define "kerf.reference" -}}
{{- $image := index . 1 }}
{{- $version := printf ":%s" ($image.tag | default (index . 0).Chart.AppVersion) }}
{{- $image.repository }}{{ ternary (printf "@%s" $image.digest) $version (and (ne $image.digest "") (eq $image.tag "")) }}
{{- end }}

{{/* The settings file: .Values.config, completed with settings that other values imply. */}}
{{- define "kerf.config" -}}
{{- $config := deepCopy .Values.config }}
{{- $server := dict "port" 8888 "metrics_port" 8889 "host" (ternary "0.0.0.0" "127.0.0.1" (eq .Values.mode "service")) }}
{{- if include "kerf.tls.own" . }}
{{- $hosts := concat (include "kerf.tls.hosts" . | fromYamlArray) (append .Values.tls.addresses "127.0.0.1" | uniq) }}
{{- $secret := printf "%s/%s" .Release.Namespace (include "kerf.tls.own" .) }}
{{- $config = mergeOverwrite (dict "certificates" (dict "secret" $secret "hosts" $hosts "client" "kube-scheduler")) $config }}
{{- end }}
{{- if include "kerf.tls.secret" . }}
{{- $server = merge $server (dict "tls_cert_file" "/etc/kerf-tls/tls.crt" "tls_key_file" "/etc/kerf-tls/tls.key" "tls_client_ca_file" "/etc/kerf-tls/ca.crt") }}
{{- end }}
{{- if .Values.access.tokensSecret }}
{{- $config = mergeOverwrite (dict "access" (dict "token_file" "/etc/kerf-tokens/tokens")) $config }}
{{- end }}
{{- if .Values.access.operatorsSecret }}
{{- $config = mergeOverwrite (dict "access" (dict "apply_token_file" "/etc/kerf-operators/tokens")) $config }}
{{- end }}
{{- if .Values.model.volume }}
{{- $config = mergeOverwrite (dict "model" (dict "path" "/etc/kerf-model")) $config }}
{{- end }}
{{- if .Values.history.enabled }}
{{- $config = mergeOverwrite (dict "history" (dict "path" "/var/lib/kerf/history")) $config }}
{{- end }}
{{- if and .Values.learning.enabled (not ($config.model).learned) }}{{- /* the old name, which still works */}}
{{- $config = mergeOverwrite (dict "learning" (dict "config_map" (printf "%s/%s" .Release.Namespace (include "kerf.learned" .)))) $config }}
{{- end }}
{{- if .Values.defrag.enabled }}
{{- $config = mergeOverwrite (dict "defrag" (dict "record" (printf "%s/%s" .Release.Namespace (include "kerf.defrag" .)))) $config }}
{{- end }}
{{- if .Values.dra.enabled }}
{{- $config = mergeOverwrite (dict "dra" (dict "allocate" true)) $config }}
{{- end }}
{{- /* In mode scheduler Kerf decides only while its pod's kube-scheduler holds the scheduler's lease. */}}
{{- $election := dict "mode" (ternary "scheduler" "own" (eq .Values.mode "scheduler")) "namespace" .Release.Namespace "lease" (include "kerf.name" .) }}
{{- $queue := dict "enabled" .Values.queue.enabled "extender" (ne .Values.mode "planner") }}
{{- if .Values.queue.pipelines }}{{- /* unless the settings use the old names */}}
{{- $pipelines := dict }}
{{- if not (hasKey ($config.queue | default dict) "pipelines") }}{{- $_ := set $pipelines "enabled" true }}{{- end }}
{{- if not (hasKey ($config.queue | default dict) "mlflows") }}{{- $_ := set $pipelines "mlflows" .Values.queue.mlflows }}{{- end }}
{{- $config = mergeOverwrite (dict "pipelines" $pipelines) $config }}
{{- end }}
{{- $config := mergeOverwrite (dict "server" $server "leader_election" $election "queue" $queue) $config }}
{{- toYaml $config }}
{{- end }}

{{/* The ConfigMap through which fitted models are submitted. */}}
{{- define "kerf.learned" -}}
{{ include "kerf.name" . }}-learned
{{- end }}

{{/* The ConfigMap that records moves in progress. */}}
{{- define "kerf.defrag" -}}
{{ include "kerf.name" . }}-defrag
{{- end }}

{{/* The Lease by which replicas behind a Service elect their leader, or "". */}}
{{- define "kerf.leads" -}}
{{- $election := (include "kerf.config" . | fromYaml).leader_election }}
{{- if eq $election.mode "own" }}{{ $election.lease }}{{ end }}
{{- end }}

{{- define "kerf.schedulerConfig" -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: true
  # A separate lease: under the default name it would be a standby of the cluster's own kube-scheduler.
  resourceName: {{ include "kerf.name" . }}
  resourceNamespace: {{ .Release.Namespace }}
# No kubeconfig: it uses the pod's service account.
clientConnection:
  # The defaults of 50 and 100 would throttle kube-scheduler in a burst of pods.
  qps: 1000
  burst: 2000
percentageOfNodesToScore: {{ .Values.scheduler.percentageOfNodesToScore }}
profiles:
  - schedulerName: {{ .Values.scheduler.name }}
extenders:
  {{- include "kerf.extenders" (list . "http://127.0.0.1:8888" nil) | nindent 2 }}
{{- end }}

{{/* Kerf's container. */}}
{{- define "kerf.container" -}}
name: kerf
image: {{ include "kerf.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args: [serve, --config=/etc/kerf/kerf.yaml]
env:
  {{- if include "kerf.leads" . }}
  - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
  - {name: KERF_LEADER_ELECTION__POD, value: {{ .Release.Namespace }}/$(POD_NAME)}
  {{- end }}
  - {name: KERF_SERVER__METRICS_HOST, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
  {{- with .Values.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
ports:
  {{- if eq .Values.mode "service" }}
  - {name: http, containerPort: 8888}
  {{- end }}
  - {name: metrics, containerPort: 8889}
# A standby replica is ready too: the Service selects the leader by its label.
startupProbe:
  httpGet: {port: metrics, path: /healthz}
  periodSeconds: 1
  timeoutSeconds: 5
  failureThreshold: 120
readinessProbe:
  httpGet: {port: metrics, path: /syncz}
  periodSeconds: 5
  timeoutSeconds: 5
livenessProbe:
  httpGet: {port: metrics, path: /healthz}
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
    readOnly: {{ not (include "kerf.tls.own" .) }}
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
  {{- if .Values.access.operatorsSecret }}
  - name: operators
    mountPath: /etc/kerf-operators
    readOnly: true
  {{- end }}
  {{- if .Values.history.enabled }}
  - name: history
    mountPath: /var/lib/kerf
  {{- end }}
{{- end }}

{{/* A pod's user. Arguments: the root context, and whether the pod writes to a mounted volume. OpenShift assigns users itself. */}}
{{- define "kerf.user" -}}
{{- $root := index . 0 -}}
runAsNonRoot: true
{{- range $key, $value := $root.Values.podSecurityContext }}
{{- $assigned := and (eq (toString $value) "65532") ($root.Capabilities.APIVersions.Has "security.openshift.io/v1") }}
{{- if not (or $assigned (kindIs "invalid" $value) (and (eq $key "fsGroup") (not (index $ 1)))) }}
{{ toYaml (dict $key $value) }}
{{- end }}
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* kube-scheduler's image tag: the cluster's version without a vendor's suffix (v1.33.4-eks-1a2b3c4). */}}
{{- define "kerf.schedulerTag" -}}
{{- $version := regexFind "[0-9]+\\.[0-9]+\\.[0-9]+" .Capabilities.KubeVersion.Version }}
{{- if and (not .Values.scheduler.tag) (not $version) }}
{{- fail (printf "no kube-scheduler version can be derived from this cluster's version %q: add --set scheduler.tag=v1.33.4" .Capabilities.KubeVersion.Version) }}
{{- end }}
{{- .Values.scheduler.tag | default (printf "v%s" $version) }}
{{- end }}

{{- define "kerf.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Whether the webhook adds the queue's gate to pods; "" for no. */}}
{{- define "kerf.queue.optIn" -}}
{{- $by := .Values.queue.optIn }}
{{- if and .Values.queue.enabled (or $by.namespaces $by.pods $by.genius) }}yes{{ end }}
{{- end }}

{{/* Whether there is a webhook; "" for no. */}}
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

{{/* The Secret of the webhook's certificate if Kerf issues it, else "". */}}
{{- define "kerf.webhook.own" -}}
{{- if not (or .Values.webhook.tls.secretName .Values.webhook.tls.issuer.name) }}{{ include "kerf.webhook.name" . }}{{ end }}
{{- end }}

{{/* Names of the webhook configurations, as a JSON list. */}}
{{- define "kerf.webhook.configurations" -}}
{{- $queue := ternary (list (printf "%s-queue" (include "kerf.name" .))) list (ne (include "kerf.queue.optIn" .) "") }}
{{- concat $queue (ternary (list (include "kerf.webhook.name" .)) list .Values.inject.enabled) | toJson }}
{{- end }}

{{- define "kerf.webhook.annotations" -}}
{{- if not (include "kerf.webhook.own" .) }}
annotations:
  # cert-manager fills caBundle from the Certificate of that name; without cert-manager this has no effect.
  cert-manager.io/inject-ca-from: {{ .Release.Namespace }}/{{ include "kerf.webhook.name" . }}
{{- end }}
{{- end }}

{{/* The webhook's CA bundle: given, or filled in by cert-manager or Kerf. */}}
{{- define "kerf.webhook.bundle" -}}
{{- if include "kerf.webhook.own" . }}
{{- dig "data" "ca.crt" "" (include "kerf.kept" (list . (include "kerf.webhook.own" .)) | fromYaml) }}
{{- else }}
{{- .Values.webhook.tls.caBundle }}
{{- end }}
{{- end }}

{{/* Common fields of all webhooks. Arguments: the root context, and the path. */}}
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
  {{- $bundle := include "kerf.webhook.bundle" $root }}
  {{- if or $bundle (not (include "kerf.webhook.own" $root)) }}
  caBundle: {{ $bundle | quote }}
  {{- end }}
admissionReviewVersions: [v1]
sideEffects: None
# If the webhook can't be reached, the pod is created unchanged.
failurePolicy: Ignore
timeoutSeconds: {{ $root.Values.webhook.timeoutSeconds }}
{{- end }}

{{/* Strings as a CEL list. */}}
{{- define "kerf.policy.list" -}}
{{- $quoted := list }}
{{- range . }}{{ $quoted = append $quoted (printf "'%s'" .) }}{{ end -}}
[{{ join ", " $quoted }}]
{{- end }}

{{/* CEL: whether the toleration `each` tolerates Kerf's taint. An empty key matches all keys, whatever the operator. */}}
{{- define "kerf.dra.tolerates" -}}
each.?key.orValue('') == 'kerf.dev/owned' || (each.?key.orValue('') == '' && !(each.?effect.orValue('') in ['NoExecute', 'None']))
{{- end }}

{{/* Annotations that Kerf reads back, so only Kerf may write them: assignments, fencing, the queue's. */}}
{{- define "kerf.policy.kerfs" -}}
- kerf.dev/assigned-gpus
- kerf.dev/assigned-uuids
- kerf.dev/assigned-share
- kerf.dev/assigned-memory-mib
- kerf.dev/assigned-model
- kerf.dev/assigned-node
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
