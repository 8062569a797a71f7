{{/* managedResources of the first extender, as YAML. kube-scheduler ignores those of scheduler.ignoredResources. */}}
{{- define "kerf.managedResources" -}}
{{- $ignored := .Values.scheduler.ignoredResources }}
{{- $named := list
  "nvidia.com/gpu" "nvidia.com/gpu.shared" "nvidia.com/vgpu" "nvidia.com/gpumem" "nvidia.com/gpumem-percentage"
  "nvidia.com/gpucores" "aliyun.com/gpu-mem" -}}
{{- $named = concat $named .Values.scheduler.managedResources | uniq }}
{{- $profiles := list
  "1g.5gb" "1g.5gb.me" "1g.6gb" "1g.6gb.me" "1g.10gb" "1g.10gb.me" "1g.12gb" "1g.12gb.me" "1g.18gb" "1g.18gb.me"
  "1g.20gb" "1g.23gb" "1g.23gb.me" "1g.24gb" "1g.24gb-me" "1g.24gb.gfx" "1g.24gb.me" "1g.24gb.me.all" "1g.35gb"
  "1g.36gb" "1g.45gb" "1g.47gb" "2g.10gb" "2g.12gb" "2g.12gb.me" "2g.20gb" "2g.24gb" "2g.35gb" "2g.36gb" "2g.45gb"
  "2g.47gb" "2g.48gb" "2g.48gb-me" "2g.48gb.gfx" "2g.48gb.me.all" "3g.20gb" "3g.40gb" "3g.47gb" "3g.48gb" "3g.71gb"
  "3g.72gb" "3g.90gb" "3g.95gb" "4g.20gb" "4g.24gb" "4g.40gb" "4g.47gb" "4g.48gb" "4g.71gb" "4g.72gb" "4g.90gb"
  "4g.95gb" "4g.96gb" "4g.96gb.gfx" "7g.40gb" "7g.80gb" "7g.94gb" "7g.96gb" "7g.141gb" "7g.144gb" "7g.180gb"
  "7g.189gb" -}}
- {name: kerf.dev/gpu, ignoredByScheduler: true}
{{- range $named }}
- {name: {{ . }}{{ if has . $ignored }}, ignoredByScheduler: true{{ end }}}
{{- end }}
{{- range $ignored }}
{{- if not (has . $named) }}
- {name: {{ . }}, ignoredByScheduler: true}
{{- end }}
{{- end }}
# MIG devices. While Kerf is down, pods with an unlisted profile are placed by kube-scheduler alone.
{{- range $profiles }}
- {name: nvidia.com/mig-{{ . }}}
{{- end }}
{{- end }}

{{/* Both extenders of kube-scheduler's configuration. Arguments: the root context, Kerf's address, further fields. */}}
{{- define "kerf.extenders" -}}
{{- $root := index . 0 }}
{{- $address := index . 1 }}
{{- $more := index . 2 -}}
- urlPrefix: {{ $address }}
  {{- with $more }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  filterVerb: filter
  prioritizeVerb: prioritize
  weight: 1
  bindVerb: bind
  # Drops preemption candidates whose victims would not free GPUs that the pod can use.
  preemptVerb: preempt
  # Calls carry node names, not whole Node objects: Kerf watches nodes itself.
  nodeCacheCapable: true
  httpTimeout: 5s
  # While Kerf is down, GPU pods stay pending: placed without Kerf, they could get GPUs that are already assigned.
  ignorable: false
  # Pods that request one of these go through Kerf; those that request GPUs by annotation or label only have the first.
  managedResources:
    {{- include "kerf.managedResources" $root | nindent 4 }}
# All other pods: at each of the two verbs kube-scheduler goes on without Kerf after httpTimeout.
- urlPrefix: {{ $address }}/others
  {{- with $more }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  filterVerb: filter
  prioritizeVerb: prioritize
  weight: 1
  nodeCacheCapable: true
  httpTimeout: 500ms
  ignorable: true
{{- end }}
