{{/* The Secret with Kerf's certificate, "" where it serves HTTP: given, or made by the chart or by cert-manager. */}}
{{- define "kerf.tls.secret" -}}
{{- if .Values.tls.secretName }}{{ .Values.tls.secretName }}
{{- else if or .Values.tls.selfSigned .Values.tls.issuer.name }}{{ include "kerf.name" . }}-tls{{ end }}
{{- end }}

{{/* The Secret with a certificate for kube-scheduler, "" where the chart has none made. */}}
{{- define "kerf.tls.clientSecret" -}}
{{- if and (not .Values.tls.secretName) (include "kerf.tls.secret" .) }}{{ include "kerf.name" . }}-client{{ end }}
{{- end }}

{{- define "kerf.tls.hosts" -}}
{{- $service := printf "%s.%s" (include "kerf.name" .) .Release.Namespace }}
{{- list (printf "%s.svc" $service) $service (printf "%s.svc.cluster.local" $service) | toYaml }}
{{- end }}

{{/* Both certificates that the chart makes, with their CA, whose key is kept nowhere: made once for a release. */}}
{{- define "kerf.tls.made" -}}
{{- $name := include "kerf.name" . }}
{{- $server := lookup "v1" "Secret" .Release.Namespace (include "kerf.tls.secret" .) }}
{{- $client := lookup "v1" "Secret" .Release.Namespace (include "kerf.tls.clientSecret" .) }}
{{- if and $server $client }}
{{- dict "server" $server.data "client" $client.data | toYaml }}
{{- else }}
{{- $ca := genCA (printf "%s-ca" $name) 3650 }}
{{- $hosts := include "kerf.tls.hosts" . | fromYamlArray }}
{{- $addresses := append .Values.tls.addresses "127.0.0.1" | uniq }}
{{- $own := genSignedCert (first $hosts) $addresses (append $hosts "localhost") 3650 $ca }}
{{- $theirs := genSignedCert "kube-scheduler" nil nil 3650 $ca }}
{{- $server = dict "tls.crt" (b64enc $own.Cert) "tls.key" (b64enc $own.Key) "ca.crt" (b64enc $ca.Cert) }}
{{- $client = dict "tls.crt" (b64enc $theirs.Cert) "tls.key" (b64enc $theirs.Key) "ca.crt" (b64enc $ca.Cert) }}
{{- dict "server" $server "client" $client | toYaml }}
{{- end }}
{{- end }}
