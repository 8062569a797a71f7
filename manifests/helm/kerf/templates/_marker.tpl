{{/* CEL: whether a pod requests GPUs by annotation or label; same as `requests_by_metadata` in extender/core/annotations.py. */}}
{{- define "kerf.marker.asks" -}}
(has({{ . }}.metadata.annotations) && (
  ['kerf.dev/gpu-count', 'kerf.dev/gpu-memory-each', 'kerf.dev/gpu-memory-total'].exists(key,
    key in {{ . }}.metadata.annotations && !({{ . }}.metadata.annotations[key].trim() in ['', '0'])) ||
  ['kerf.dev/gpu-share', 'kerf.dev/gpu-model', 'kerf.dev/gpu-model-exclude', 'kerf.dev/gpu-uuid', 'kerf.dev/gpu-uuid-exclude'].exists(key,
    key in {{ . }}.metadata.annotations && {{ . }}.metadata.annotations[key].trim() != ''))) ||
(has({{ . }}.metadata.labels) && (
  ['genius/gpu-number', 'genius/gpu-memory-each', 'genius/gpu-memory-total'].exists(key,
    key in {{ . }}.metadata.labels && !({{ . }}.metadata.labels[key] in ['', '0'])) ||
  ('genius/gpu-model' in {{ . }}.metadata.labels && {{ . }}.metadata.labels['genius/gpu-model'] != '')))
{{- end }}

{{/* CEL: whether a list of containers requests a managed resource of Kerf's extender. */}}
{{- define "kerf.marker.named" -}}
{{ . }}.exists(container, has(container.resources) && has(container.resources.limits) && (
  ['kerf.dev/gpu', 'nvidia.com/gpu', 'nvidia.com/gpu.shared', 'nvidia.com/vgpu', 'nvidia.com/gpumem', 'nvidia.com/gpumem-percentage',
   'nvidia.com/gpucores', 'aliyun.com/gpu-mem'].exists(name, name in container.resources.limits) ||
  container.resources.limits.exists(name, name.startsWith('nvidia.com/mig-'))))
{{- end }}

{{- define "kerf.marker.unmarked" -}}
!({{ include "kerf.marker.named" "object.spec.containers" }}) &&
!(has(object.spec.initContainers) && {{ include "kerf.marker.named" "object.spec.initContainers" }})
{{- end }}

{{/* Pods that the policies apply to: not yet scheduled, and of a scheduler that calls Kerf. */}}
{{- define "kerf.marker.matches" -}}
- name: to-be-scheduled
  expression: "!has(object.spec.nodeName) || object.spec.nodeName == ''"
{{- $names := .Values.admissionPolicy.schedulerNames }}
{{- if and (not $names) (eq .Values.mode "scheduler") }}
{{- $names = list .Values.scheduler.name }}
{{- end }}
{{- with $names }}
- name: by-a-scheduler-that-asks-kerf
  expression: object.spec.schedulerName in {{ toJson . }}
{{- end }}
- name: asks-by-annotation-or-label
  expression: |-
    {{- include "kerf.marker.asks" "object" | nindent 4 }}
{{- end }}
