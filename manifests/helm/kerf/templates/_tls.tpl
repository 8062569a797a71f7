{{/* The Secret with Kerf's certificate: given, or issued by Kerf or cert-manager; "" if Kerf serves plain HTTP. */}}
{{- define "kerf.tls.secret" -}}
{{- if .Values.tls.secretName }}{{ .Values.tls.secretName }}
{{- else if or .Values.tls.selfSigned .Values.tls.issuer.name }}{{ include "kerf.name" . }}-tls{{ end }}
{{- end }}

{{/* The same if Kerf issues it, else "". */}}
{{- define "kerf.tls.own" -}}
{{- if .Values.tls.selfSigned }}{{ include "kerf.tls.secret" . }}{{ end }}
{{- end }}

{{/* Where kube-scheduler's certificate is: a Secret, and the prefix of its keys. */}}
{{- define "kerf.tls.client" -}}
{{- $apart := printf "%s-client" (include "kerf.name" .) }}
{{- if include "kerf.tls.own" . }}
{{- ternary (list $apart "tls") (list (include "kerf.tls.own" .) "client") (ne (include "kerf.kept" (list . $apart)) "") | toJson }}
{{- else }}
{{- list $apart "tls" | toJson }}
{{- end }}
{{- end }}

{{- define "kerf.tls.hosts" -}}
{{- $service := printf "%s.%s" (include "kerf.name" .) .Release.Namespace }}
{{- list (printf "%s.svc" $service) $service (printf "%s.svc.cluster.local" $service) "localhost" | toYaml }}
{{- end }}

{{/* Type and data of a Secret that this chart before 0.1 created with Helm. It stays in use, and Helm would delete it if it were
     not rendered again. Secrets that Kerf fills have another type. */}}
{{- define "kerf.kept" -}}
{{- $root := index . 0 }}
{{- $found := lookup "v1" "Secret" $root.Release.Namespace (index . 1) }}
{{- if and $found (eq (toString $found.type) "kubernetes.io/tls") -}}
type: kubernetes.io/tls
data:
  {{- pick $found.data "tls.crt" "tls.key" "ca.crt" | toYaml | nindent 2 }}
{{- end }}
{{- end }}

{{/* A Secret that Kerf fills and renews, and a Role for this Secret only. Arguments: the root context, its name, the labels'
     template, the service account. `create`, for a lost Secret, also covers no other name: Kerf uses server-side apply. */}}
{{- define "kerf.own.secret" -}}
{{- $root := index . 0 }}
{{- $name := index . 1 -}}
apiVersion: v1
kind: Secret
metadata:
  name: {{ $name }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include (index . 2) $root | nindent 4 }}
{{ include "kerf.kept" (list $root $name) | default "type: Opaque" }}
{{- if $root.Values.rbac.create }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $name }}-certificates
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include (index . 2) $root | nindent 4 }}
rules:
  - apiGroups: [""]
    resources: [secrets]
    resourceNames: [{{ $name }}]
    verbs: [get, patch, create]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $name }}-certificates
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include (index . 2) $root | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ $name }}-certificates
subjects:
  - kind: ServiceAccount
    name: {{ index . 3 }}
    namespace: {{ $root.Release.Namespace }}
{{- end }}
{{- end }}
