{{/* The port on which a service listens. */}}
{{- define "fovea.ports" -}}
{predict: 8101, generate: 8102, embed: 8103, score: 8104}
{{- end }}

{{/* All entries of `models`, each with what `services` and `defaults` say and what follows from it, as a YAML list. */}}
{{- define "fovea.models" -}}
{{- $ports := include "fovea.ports" . | fromYaml }}
{{- $seen := dict }}
{{- $models := list }}
{{- range .Values.models }}
{{- $model := mergeOverwrite (deepCopy $.Values.defaults) (deepCopy (index $.Values.services .service)) (deepCopy .) }}
{{- $isFirst := not (hasKey $seen .service) }}
{{- $_ := set $seen .service true }}
{{- $hasGpu := or (gt (int $model.gpu.count) 0) (ne $model.gpu.claim "") }}
{{- $isVllm := and $model.vllm.enabled (eq .service "generate") }}
{{- if and $model.scaleToZero (not $.Values.scaling.enabled) }}
{{- fail (printf "models: %s scales to zero, which needs scaling.enabled" .name) }}
{{- end }}
{{- if and $hasGpu (not $model.checkpoints) }}
{{- fail (printf "models: %s has a GPU and names no checkpoints: name some, also where they are starters, or set gpu.count to 0" .name) }}
{{- end }}
{{- if and (gt (int $model.gpu.count) 0) (ne $model.gpu.claim "") }}
{{- fail (printf "models: %s has gpu.count %d and gpu.claim %s: set gpu.count to 0" .name (int $model.gpu.count) $model.gpu.claim) }}
{{- end }}
{{- if ne (eq (int $model.replicas.min) 0) $model.scaleToZero }}
{{- fail (printf "models: %s has replicas.min %d and scaleToZero %t: a model that scales to zero has replicas.min 0, and no other" .name (int $model.replicas.min) $model.scaleToZero) }}
{{- end }}
{{- $stable := list }}
{{- range default (list "starters") $model.checkpoints }}{{ $stable = append $stable (regexReplaceAll "^[^@]*@?" . "" | default "latest") }}{{ end }}
{{- if eq (list $model.canary | toJson) ($stable | uniq | toJson) }}
{{- fail (printf "models: the canary of %s follows %s, as its other pods do: give another alias, such as candidate" .name $model.canary) }}
{{- end }}
{{- if and (not $isFirst) (not $model.checkpoints) }}
{{- fail (printf "models: %s is not the first of %s, so it must name its checkpoints" .name .service) }}
{{- end }}
{{- if and $isVllm (ne (len $model.checkpoints) 1) }}
{{- fail (printf "models: vLLM serves one checkpoint, and %s names %d" .name (len $model.checkpoints)) }}
{{- end }}
{{- if and $isVllm (not $hasGpu) }}
{{- fail (printf "models: %s is served by vLLM, which needs a GPU: set gpu.count or gpu.claim" .name) }}
{{- end }}
{{- if and $isVllm (not $.Values.images.vllm) }}
{{- fail (printf "images.vllm is empty, and %s is served by vLLM" .name) }}
{{- end }}
{{- $image := "" }}
{{- if hasPrefix "oci://" $model.source }}
{{- $image = trimPrefix "oci://" $model.source }}
{{- if not (regexMatch "^[^/\\s]+(/[^/\\s]+)+(:[\\w][\\w.-]*|@sha256:[0-9a-f]{64})$" $image) }}
{{- fail (printf "models: the source of %s is %s: write the full name of an image with a tag or digest, such as oci://registry.example.org/you/tickets:1" .name $model.source) }}
{{- end }}
{{- if not $model.checkpoints }}
{{- fail (printf "models: the source of %s is an image: name in checkpoints what it serves of it" .name) }}
{{- end }}
{{- end }}
{{- $isImported := and $model.source (not $image) }}
{{- if and $isImported (ne (len $model.checkpoints) 1) }}
{{- fail (printf "models: a source is imported as one checkpoint, and %s names %d" .name (len $model.checkpoints)) }}
{{- end }}
{{- if and $isImported (not $.Values.store.url) }}
{{- fail (printf "store.url is empty, and %s is imported into it" .name) }}
{{- end }}
{{- $holdsCollections := and (eq .service "embed") $isFirst (eq $.Values.collections.placement "embed") }}
{{- if and $holdsCollections (gt (int $model.replicas.max) 1) }}
{{- fail (printf "models: one pod of %s has the collections; to scale it, set collections.placement to apart or shared" .name) }}
{{- end }}
{{- $isScaled := and $.Values.scaling.enabled (or $model.scaleToZero (gt (int $model.replicas.max) (int $model.replicas.min))) }}
{{- $start := int $model.startSeconds }}
{{- if $isVllm }}{{ $start = add $start $model.vllm.startSeconds }}{{ end }}
{{- /* What the gateway calls it: its first models by their service, pools by their own names. */}}
{{- $derived := dict
      "upstream" (ternary .service .name $isFirst) "port" (index $ports .service) "isFirst" $isFirst "hasGpu" $hasGpu "isVllm" $isVllm "isScaled" $isScaled
      "holdsCollections" $holdsCollections "image" $image "isImported" $isImported "readySeconds" (add $.Values.times.placingSeconds $start) }}
{{- $models = append $models (merge $derived $model) }}
{{- end }}
{{- toYaml $models }}
{{- end }}

{{/* The longest that a pod of any model may take from the decision to start it to its first answer. */}}
{{- define "fovea.readySeconds" -}}
{{- $longest := 0 }}
{{- range include "fovea.models" . | fromYamlArray }}{{ $longest = max $longest .readySeconds }}{{ end }}
{{- $longest }}
{{- end }}

{{/* How long requests wait at the gateway for the first pod of each model that scales to zero, by the gateway's name of it, as a YAML map. */}}
{{- define "fovea.wakes" -}}
{{- $wakes := dict }}
{{- range include "fovea.models" . | fromYamlArray }}
{{- /* KEDA looks every 15 s; the gateway notices a new address within 35 s. */}}
{{- if .scaleToZero }}{{ $_ := set $wakes .upstream (add .readySeconds 50) }}{{ end }}
{{- end }}
{{- toYaml $wakes }}
{{- end }}

{{/* The longest that a request may wait for a first pod. */}}
{{- define "fovea.wakeSeconds" -}}
{{- $longest := 0 }}
{{- range include "fovea.wakes" . | fromYaml }}{{ $longest = max $longest . }}{{ end }}
{{- $longest }}
{{- end }}

{{/* The longest deadline that a request may ask for. */}}
{{- define "fovea.maxRequestSeconds" -}}
{{- max 600 (add .Values.times.requestSeconds (include "fovea.wakeSeconds" .)) }}
{{- end }}
