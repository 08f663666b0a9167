{{/* GiB of the volume of verified copies, 2 versions of all checkpoints with room for manifests: the model. */}}
{{- define "fovea.cacheGiB" -}}
{{- $weights := int .weightsGiB }}
{{- add (mul 2 $weights) (div (add $weights 4) 5) 1 }}
{{- end }}

{{/* GiB of vLLM's copy: the model. */}}
{{- define "fovea.vllmCopyGiB" -}}
{{- $weights := int .weightsGiB }}
{{- add $weights (div (add $weights 9) 10) 1 }}
{{- end }}

{{/* Bytes that verified copies may take together: (dict "root" $ "model" ...). Of a claim that pods share, each may fill four
     fifths: a pod that knew of its own model alone would remove others', and FoveaVolumeFull fires where less than a tenth
     is left. What is mounted is not copied. */}}
{{- define "fovea.cacheBytes" -}}
{{- $claim := .root.Values.modelCache }}
{{- $keptGiB := ternary (div (mul 4 $claim.sizeGiB) 5) (mul 2 .model.weightsGiB) $claim.claim }}
{{- ternary 0 (mul $keptGiB 1073741824) (ne .model.image "") }}
{{- end }}

{{/* Where the image of a model is mounted, with the layout of a store: the model. */}}
{{- define "fovea.imageMount" -}}
{{- if .image }}
- {name: model-image, mountPath: /var/lib/fovea/model-image, readOnly: true}
{{- end }}
{{- end }}

{{/* Settings of a service's process, as a YAML map: as "fovea.servicePod". */}}
{{- define "fovea.serviceSettings" -}}
{{- $model := .model }}
{{- $prefix := printf "FOVEA_%s" (upper $model.service) }}
{{- $checkpoints := $model.checkpoints }}
{{- if .alias }}
{{- /* An alias that is written out would win over the canary's. */}}
{{- $checkpoints = list }}
{{- range $model.checkpoints }}{{ $checkpoints = append $checkpoints (first (splitList "@" .)) }}{{ end }}
{{- end }}
{{- $env := dict (printf "%s_MODELS" $prefix) (join "," $checkpoints) }}
{{- $_ := set $env "FOVEA_CHECKPOINT_CACHE_MAX_BYTES" (include "fovea.cacheBytes" .) }}
{{- if $model.image }}{{ $_ := set $env "FOVEA_STORE_URL" "file:///var/lib/fovea/model-image" }}{{ end }}
{{- if not $model.checkpoints }}{{ $_ := unset $env (printf "%s_MODELS" $prefix) }}{{ end }}
{{- /* A first version that hangs is refused by its name before the pod is killed. */}}
{{- $_ := set $env "FOVEA_LOAD_TIMEOUT_S" (sub $model.startSeconds 30 | toString) }}
{{- with .alias }}{{ $_ := set $env (printf "%s_ALIAS" $prefix) . }}{{ end }}
{{- if $model.isVllm }}
{{- $_ := set $env "FOVEA_GENERATE_ENGINE" "vllm" }}
{{- $_ := set $env "FOVEA_GENERATE_VLLM_URL" "http://127.0.0.1:8000" }}
{{- /* vLLM serves one model, by a name that does not change with the store's. */}}
{{- $_ := set $env "FOVEA_GENERATE_VLLM_MODEL" "checkpoint" }}
{{- else if $model.hasGpu }}
{{- /* Where the GPU is missing, starting fails instead of computing on the CPU. */}}
{{- $_ := set $env (printf "%s_DEVICE" $prefix) "cuda" }}
{{- $_ := set $env (printf "%s_MEMORY_SHARE" $prefix) ($model.gpu.memoryShare | toString) }}
{{- if eq $model.service "embed" }}{{ $_ := set $env "FOVEA_EMBED_INDEX_DEVICE" "cuda" }}{{ end }}
{{- end }}
{{- if eq .collections "shared" }}
{{- $_ := set $env "FOVEA_EMBED_COLLECTIONS_STORE_URL" .root.Values.collections.url }}
{{- /* States of images would fill the disk of a pod, which is a node's. */}}
{{- $_ := set $env "FOVEA_EMBED_COLLECTION_STATE_BYTES" "0" }}
{{- end }}
{{- $env = mergeOverwrite $env $model.env }}
{{- if and (eq $model.service "embed") (eq .collections "none") }}{{ $_ := set $env "FOVEA_EMBED_MAX_COLLECTIONS" "0" }}{{ end }}
{{- toYaml $env }}
{{- end }}

{{/* The pod of a service: (dict "root" $ "model" ... "name" ... "alias" "" "collections" "own"|"none"|"shared"). */}}
{{- define "fovea.servicePod" -}}
{{- $root := .root }}
{{- $model := .model }}
{{- $values := $root.Values }}
{{- $serviceGpu := ternary dict $model.gpu $model.isVllm }}
{{- $hasCache := not $model.image }}
{{- $credentials := ternary $values.store.secret "" $hasCache }}
{{- if eq .collections "shared" }}{{ $credentials = $values.collections.secret }}{{ end }}
{{- $diskGiB := 2 }}
{{- /* For the empty folder of collections. */}}
{{- if and (eq $model.service "embed") (ne .collections "own") }}{{ $diskGiB = 3 }}{{ end }}
{{- if and $hasCache (not $values.modelCache.claim) }}{{ $diskGiB = add $diskGiB (include "fovea.cacheGiB" $model) }}{{ end }}
metadata:
  labels:
    {{- include "fovea.labels" (dict "program" $model.service) | trim | nindent 4 }}
    app.kubernetes.io/instance: {{ .name }}
    pool: {{ .name }}
  annotations:
    checksum/settings: {{ include "fovea.settings" $root | sha256sum | trunc 16 }}
spec:
  {{- include "fovea.podBasics" (dict "root" $root "model" $model "hasGpu" $model.hasGpu) | trim | nindent 2 }}
  # 2 s of preStop, 3 s of delay, the requests in flight, and some to leave.
  terminationGracePeriodSeconds: {{ add $values.times.requestSeconds 15 }}
  {{- include "fovea.spread" .name | trim | nindent 2 }}
  {{- with $model.gpu.claim }}
  resourceClaims: [{name: gpu, resourceClaimName: {{ . }}}]
  {{- end }}
  {{- if $model.isVllm }}
  initContainers: {{- include "fovea.vllm" . | trim | nindent 4 }}
  {{- end }}
  containers:
    - name: service
      image: {{ $values.images.service }}
      imagePullPolicy: {{ $values.imagePullPolicy }}
      command: [fovea, serve, {{ $model.service }}]
      ports: [{name: http, containerPort: {{ $model.port }}}]
      envFrom: [{configMapRef: {name: fovea}}]
      env:
        {{- include "fovea.env" (include "fovea.serviceSettings" . | fromYaml) | trim | nindent 8 }}
        {{- include "fovea.sharedSecrets" $root | trim | nindent 8 }}
        {{- include "fovea.credentials" $credentials | trim | nindent 8 }}
        {{- if $model.isVllm }}
        {{- include "fovea.vllmKey" (dict "root" $root "variable" "FOVEA_GENERATE_VLLM_KEY") | trim | nindent 8 }}
        {{- end }}
        {{- if eq .collections "shared" }}
        # Made by CloudNativePG: user, password and the Service of the primary.
        - name: FOVEA_EMBED_COLLECTIONS_URL
          valueFrom: {secretKeyRef: {name: postgres-app, key: uri}}
        {{- end }}
      {{- include "fovea.probes" (dict "startSeconds" $model.startSeconds "period" 5) | trim | nindent 6 }}
      lifecycle: {preStop: {sleep: {seconds: 2}}}
      {{- include "fovea.resources" (dict "path" (printf "models: %s has resources" $model.name) "resources" $model.resources "diskGiB" $diskGiB "gpu" $serviceGpu) | trim | nindent 6 }}
      {{- include "fovea.confined" (and $model.hasGpu (not $model.isVllm)) | trim | nindent 6 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        {{- if $hasCache }}
        - {name: checkpoints, mountPath: /var/cache/fovea}
        {{- end }}
        {{- include "fovea.imageMount" $model | trim | nindent 8 }}
        {{- include "fovea.trustMount" $root | trim | nindent 8 }}
        {{- if eq $model.service "embed" }}
        - {name: collections, mountPath: /var/lib/fovea/collections}
        {{- end }}
        {{- if and $hasCache (not $values.store.url) }}
        - {name: store, mountPath: /var/lib/fovea/store}
        {{- end }}
        {{- if $values.signingSecret }}
        - {name: signing, mountPath: /etc/fovea-signing, readOnly: true}
        {{- end }}
  volumes:
    - {name: tmp, emptyDir: {sizeLimit: 2Gi}}
    {{- include "fovea.trustVolume" $root | trim | nindent 4 }}
    {{- if $model.image }}
    - {name: model-image, image: {reference: {{ $model.image }}, pullPolicy: {{ $values.imagePullPolicy }}}}
    # Verified copies of what the store has.
    {{- else if $values.modelCache.claim }}
    - {name: checkpoints, persistentVolumeClaim: {claimName: model-cache}}
    {{- else }}
    - {name: checkpoints, emptyDir: {sizeLimit: {{ include "fovea.cacheGiB" $model }}Gi}}
    {{- end }}
    {{- if eq .collections "own" }}
    - {name: collections, persistentVolumeClaim: {claimName: embed-collections}}
    {{- else if eq $model.service "embed" }}
    - {name: collections, emptyDir: {sizeLimit: 100Mi}}
    {{- end }}
    {{- if and $hasCache (not $values.store.url) }}
    - {name: store, persistentVolumeClaim: {claimName: store}}
    {{- end }}
    {{- with $values.signingSecret }}
    - {name: signing, secret: {secretName: {{ . }}, defaultMode: 0440}}
    {{- end }}
    {{- if $model.isVllm }}
    - {name: models, emptyDir: {sizeLimit: {{ ternary (include "fovea.vllmCopyGiB" $model) "1" $hasCache }}Gi}}
    - {name: vllm-tmp, emptyDir: {sizeLimit: 2Gi}}
    - {name: vllm-cache, persistentVolumeClaim: {claimName: vllm-cache}}
    # The processes of several GPUs talk through it.
    - {name: shared-memory, emptyDir: {medium: Memory, sizeLimit: {{ $model.vllm.sharedMemory }}}}
    {{- end }}
{{- end }}

{{/* The key of vLLM, which stands beside the gateway's secret: (dict "root" $ "variable" ...). */}}
{{- define "fovea.vllmKey" -}}
{{- with .root.Values.signingSecret }}
- name: {{ $.variable }}
  valueFrom: {secretKeyRef: {name: {{ . }}, key: vllm}}
{{- end }}
{{- end }}

{{/* What stands beside a service that is served by vLLM: as "fovea.servicePod". */}}
{{- define "fovea.vllm" -}}
{{- $model := .model }}
{{- $values := .root.Values }}
{{- $checkpoint := first $model.checkpoints }}
{{- if gt (include "fovea.bytes" (toString $model.vllm.sharedMemory) | float64) (include "fovea.bytes" (toString $model.vllm.resources.memoryLimit) | float64) }}
{{- fail (printf "models: %s has vllm.sharedMemory %v, which counts as memory and is over vllm.resources.memoryLimit %v" $model.name $model.vllm.sharedMemory $model.vllm.resources.memoryLimit) }}
{{- end }}
{{- with .alias }}{{ $checkpoint = printf "%s@%s" (first (splitList "@" $checkpoint)) . }}{{ end }}
# vLLM reads a plain folder, which this compares byte by byte: a copy, or a link to what the image has.
- name: checkpoint
  image: {{ $values.images.service }}
  imagePullPolicy: {{ $values.imagePullPolicy }}
  command: [fovea, store, fetch, {{ $checkpoint | quote }}, /models/checkpoint{{ if $model.image }}, --link{{ end }}]
  envFrom: [{configMapRef: {name: fovea}}]
  env:
    {{- if $model.image }}
    - name: FOVEA_STORE_URL
      value: file:///var/lib/fovea/model-image
    {{- else }}
    {{- include "fovea.credentials" $values.store.secret | trim | nindent 4 }}
    {{- end }}
  resources:
    requests: {cpu: "1", memory: 1Gi}
    limits: {memory: 4Gi}
  {{- include "fovea.confined" false | trim | nindent 2 }}
  volumeMounts:
    - {name: tmp, mountPath: /tmp}
    - {name: models, mountPath: /models}
    {{- include "fovea.imageMount" $model | trim | nindent 4 }}
    {{- include "fovea.trustMount" .root | trim | nindent 4 }}
# A sidecar: it is up before the service starts, and ends after it, when the last requests are answered.
- name: vllm
  image: {{ $values.images.vllm }}
  imagePullPolicy: {{ $values.imagePullPolicy }}
  restartPolicy: Always
  args:
    - --model=/models/checkpoint
    - --served-model-name=checkpoint
    - --tensor-parallel-size={{ max 1 (int $model.gpu.count) }}
    - --gpu-memory-utilization={{ $model.gpu.memoryShare }}
    - --enable-prompt-tokens-details
    # For the kubelet's probes and Prometheus; no policy lets anybody else in, who would need the key besides.
    - --host=0.0.0.0
    - --port=8000
    {{- range $model.vllm.args }}
    - {{ . | quote }}
    {{- end }}
  {{- if $values.signingSecret }}
  env:
    {{- include "fovea.vllmKey" (dict "root" .root "variable" "VLLM_API_KEY") | trim | nindent 4 }}
  {{- end }}
  ports: [{name: vllm, containerPort: 8000}]
  startupProbe:
    httpGet: {path: /health, port: vllm}
    periodSeconds: 5
    timeoutSeconds: 5
    failureThreshold: {{ div (add $model.vllm.startSeconds 4) 5 }}
  livenessProbe:
    httpGet: {path: /health, port: vllm}
    periodSeconds: 10
    timeoutSeconds: 10
    failureThreshold: 3
  {{- include "fovea.resources" (dict "path" (printf "models: %s has vllm.resources" $model.name) "resources" $model.vllm.resources "diskGiB" (add 2 (ternary 1 (include "fovea.vllmCopyGiB" $model) (ne $model.image ""))) "gpu" $model.gpu) | trim | nindent 2 }}
  {{- include "fovea.confined" true | trim | nindent 2 }}
  volumeMounts:
    - {name: vllm-tmp, mountPath: /tmp}
    - {name: models, mountPath: /models, readOnly: true}
    {{- include "fovea.imageMount" $model | trim | nindent 4 }}
    - {name: vllm-cache, mountPath: /var/cache/vllm}
    - {name: shared-memory, mountPath: /dev/shm}
{{- end }}
