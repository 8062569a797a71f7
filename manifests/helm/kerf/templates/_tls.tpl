{{/* The Secret with Kerf's certificate, "" where it serves HTTP: given, or made by Kerf or by cert-manager. */}}
{{- define "kerf.tls.secret" -}}
{{- if .Values.tls.secretName }}{{ .Values.tls.secretName }}
{{- else if or .Values.tls.selfSigned .Values.tls.issuer.name }}{{ include "kerf.name" . }}-tls{{ end }}
{{- end }}

{{/* The same where Kerf makes it, else "". */}}
{{- define "kerf.tls.own" -}}
{{- if .Values.tls.selfSigned }}{{ include "kerf.tls.secret" . }}{{ end }}
{{- end }}

{{/* Where kube-scheduler's certificate is: a Secret, and what the names in it begin with. */}}
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

{{/* Type and content of a Secret that a version of this chart before 0.1 made with Helm: it goes on being used, and would be taken
     away if it were not told again. Kerf's own are of another type. */}}
{{- define "kerf.kept" -}}
{{- $root := index . 0 }}
{{- $found := lookup "v1" "Secret" $root.Release.Namespace (index . 1) }}
{{- if and $found (eq (toString $found.type) "kubernetes.io/tls") -}}
type: kubernetes.io/tls
data:
  {{- pick $found.data "tls.crt" "tls.key" "ca.crt" | toYaml | nindent 2 }}
{{- end }}
{{- end }}

{{/* A Secret that Kerf fills and renews, with the right to that one alone: the root context, its name, the labels' template, and the
     service account. The right to create it as well, for when it is lost, reaches no other name: it is made by apply. */}}
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
