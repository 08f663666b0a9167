{{/* Labels of an object: (dict "program" ...). */}}
{{- define "fovea.labels" -}}
{{- with .program }}
app.kubernetes.io/name: {{ . }}
{{- end }}
app.kubernetes.io/part-of: fovea
{{- end }}

{{/* The nodes of pods that operators make: the value `pods`. */}}
{{- define "fovea.nodes" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What every pod has: (dict "root" $ "uid" 10001 "hasGpu" false "model" ...). */}}
{{- define "fovea.podBasics" -}}
{{- $pods := .root.Values.pods }}
{{- $model := default dict .model }}
automountServiceAccountToken: false
# A Service's variables could look like settings that nobody knows, which stop a start.
enableServiceLinks: false
serviceAccountName: {{ $pods.serviceAccount.name }}
{{- with $pods.priorityClass }}
priorityClassName: {{ . }}
{{- end }}
{{- if .hasGpu }}
{{- with $pods.gpuRuntimeClass }}
runtimeClassName: {{ . }}
{{- end }}
{{- end }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with merge dict (default dict $model.nodeSelector) $pods.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- $tolerations := concat $pods.tolerations (default list $model.tolerations) }}
{{- if .hasGpu }}
{{- $tolerations = append $tolerations (dict "key" "nvidia.com/gpu" "operator" "Exists" "effect" "NoSchedule") }}
{{- end }}
{{- with $tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  {{- if $pods.setUser }}
  runAsUser: {{ default 10001 .uid }}
  runAsGroup: {{ default 10001 .uid }}
  fsGroup: {{ default 10001 .uid }}
  fsGroupChangePolicy: OnRootMismatch
  {{- end }}
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* Pods of one workload over nodes and zones: the workload's name. */}}
{{- define "fovea.spread" -}}
topologySpreadConstraints:
{{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {app.kubernetes.io/instance: {{ $ }}}
{{- end }}
{{- end }}

{{/* Of a container; NVIDIA's hooks write into the root file system of one with a GPU: whether it has one. */}}
{{- define "fovea.confined" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: {{ not . }}
  capabilities: {drop: [ALL]}
{{- end }}

{{/* The probes of Fovea's processes: (dict "startSeconds" ... "period" ...). */}}
{{- define "fovea.probes" -}}
startupProbe:
  httpGet: {path: /startupz, port: http}
  periodSeconds: {{ .period }}
  timeoutSeconds: 2
  failureThreshold: {{ div (add .startSeconds .period -1) .period }}
readinessProbe:
  httpGet: {path: /readyz, port: http}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
livenessProbe:
  httpGet: {path: /livez, port: http}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
{{- end }}

{{/* An amount of memory such as 1.5Gi in bytes. */}}
{{- define "fovea.bytes" -}}
{{- $factor := 1.0 }}
{{- $base := ternary 1024.0 1000.0 (hasSuffix "i" .) }}
{{- range until (index (dict "k" 1 "K" 1 "M" 2 "G" 3 "T" 4 "P" 5 "E" 6) (regexFind "[a-zA-Z]" .) | int) }}{{ $factor = mulf $factor $base }}{{ end }}
{{- mulf (regexFind "^[0-9.]+" . | float64) $factor }}
{{- end }}

{{/* Requests and limits: (dict "path" "gateway.resources" "resources" ... "diskGiB" ... "gpu" model.gpu), with the path where
     values say them. */}}
{{- define "fovea.resources" -}}
{{- $gpu := default dict .gpu }}
{{- with .resources }}
{{- if gt (include "fovea.bytes" (toString .memory) | float64) (include "fovea.bytes" (toString .memoryLimit) | float64) }}
{{- fail (printf "%s.memory %v, which is over memoryLimit %v: raise memoryLimit, or lower memory" $.path .memory .memoryLimit) }}
{{- end }}
{{- end }}
resources:
  requests:
    cpu: {{ .resources.cpu | quote }}
    memory: {{ .resources.memory }}
    ephemeral-storage: {{ .diskGiB }}Gi
    {{- if $gpu.count }}
    {{ $gpu.resource }}: {{ $gpu.count }}
    {{- end }}
  limits:
    memory: {{ .resources.memoryLimit }}
    # Logs and what NVIDIA's hooks write come on top of the volumes.
    ephemeral-storage: {{ add .diskGiB 1 }}Gi
    {{- if $gpu.count }}
    {{ $gpu.resource }}: {{ $gpu.count }}
    {{- end }}
  {{- if $gpu.claim }}
  claims: [{name: gpu}]
  {{- end }}
{{- end }}

{{/* Credentials of the store, from the Secret that is given; none where the service account has them. */}}
{{- define "fovea.credentials" -}}
{{- if . }}
{{- range list "AWS_ACCESS_KEY_ID" "AWS_SECRET_ACCESS_KEY" }}
- name: {{ . }}
  valueFrom: {secretKeyRef: {name: {{ $ }}, key: {{ . }}}}
{{- end }}
{{- end }}
{{- end }}

{{/* Settings with names and values as variables. */}}
{{- define "fovea.env" -}}
{{- range $name, $value := . }}
- name: {{ $name }}
  {{- /* Numbers of values are floats: a large one would be written with an exponent. */}}
  {{- if kindIs "float64" $value }}
  value: {{ ternary ($value | int64 | toString) ($value | toString) (eq (floor $value) $value) | quote }}
  {{- else }}
  value: {{ $value | toString | quote }}
  {{- end }}
{{- end }}
{{- end }}

{{/* The authorities that are believed, by the name that each library asks for, as a YAML map. */}}
{{- define "fovea.trust" -}}
{{- if .Values.caBundle.configMap }}
# OpenSSL, rustls and httpx; requests, for traces.
{{- range list "SSL_CERT_FILE" "REQUESTS_CA_BUNDLE" }}
{{ . }}: /etc/fovea-ca/ca-bundle.crt
{{- end }}
{{- end }}
{{- end }}
{{- define "fovea.trustMount" -}}
{{- if .Values.caBundle.configMap }}
- {name: ca, mountPath: /etc/fovea-ca, readOnly: true}
{{- end }}
{{- end }}
{{- define "fovea.trustVolume" -}}
{{- with .Values.caBundle }}
{{- if .configMap }}
- {name: ca, configMap: {name: {{ .configMap }}, items: [{key: {{ .key }}, path: ca-bundle.crt}]}}
{{- end }}
{{- end }}
{{- end }}

{{/* Redis and the gateway's signature, for every process of Fovea. */}}
{{- define "fovea.sharedSecrets" -}}
{{- with .Values.signingSecret }}
- name: FOVEA_SIGNING_SECRET_FILE
  value: /etc/fovea-signing/secret
{{- end }}
{{- if .Values.redis.urlSecret }}
- name: FOVEA_REDIS_URL
  valueFrom: {secretKeyRef: {name: {{ .Values.redis.urlSecret }}, key: url}}
{{- else if and .Values.redis.enabled .Values.redis.passwordSecret }}
- name: REDIS_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ .Values.redis.passwordSecret }}, key: password}}
- name: FOVEA_REDIS_URL
  value: redis://:$(REDIS_PASSWORD)@redis:6379
{{- end }}
{{- end }}

{{/* The Service of a workload: (dict "name" ... "program" ... "port" ...). */}}
{{- define "fovea.headless" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ .name }}
  labels: {{- include "fovea.labels" . | trim | nindent 4 }}
spec:
  # Headless: the name stands for the addresses of all ready pods, over which the gateway balances itself.
  clusterIP: None
  selector:
    pool: {{ .name }}
  ports:
    - {name: http, port: {{ .port }}, targetPort: http}
{{- end }}

{{/* The PodDisruptionBudget of a workload: (dict "name" ... "program" ...). */}}
{{- define "fovea.budget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  labels: {{- include "fovea.labels" . | trim | nindent 4 }}
spec:
  # Never none of several, and a single one does not hold up the drain of a node.
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels: {app.kubernetes.io/instance: {{ .name }}}
{{- end }}

{{/* The storage class of a claim, empty for the cluster's default: (dict "root" $ "name" ...). */}}
{{- define "fovea.storageClass" -}}
{{- default .root.Values.storageClass (index .root.Values.storageClasses .name) }}
{{- end }}

{{/* A claim: (dict "root" $ "name" ... "program" ... "size" ... "accessMode" ...). */}}
{{- define "fovea.claim" -}}
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: {{ .name }}
  labels: {{- include "fovea.labels" . | trim | nindent 4 }}
  annotations:
    # What it holds outlives the release.
    helm.sh/resource-policy: keep
spec:
  accessModes: [{{ default "ReadWriteOnce" .accessMode }}]
  {{- with include "fovea.storageClass" . }}
  storageClassName: {{ . }}
  {{- end }}
  resources:
    requests: {storage: {{ .size }}}
{{- end }}
