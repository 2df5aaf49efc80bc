{{- /* Writes the values into objects of base/ and overlays/. Each of these changes the object that it is given. */ -}}

{{- define "reshape.image" -}}
{{- $name := .Values.image.repository -}}
{{- with .Values.image.registry -}}
  {{- $name = printf "%s/%s" (trimSuffix "/" .) $name -}}
{{- end -}}
{{- if .Values.image.digest -}}
  {{- printf "%s@%s" $name .Values.image.digest -}}
{{- else -}}
  {{- printf "%s:%s" $name (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- /* What cannot be said by values.schema.json. */ -}}
{{- define "reshape.checks" -}}
{{- if ne .Release.Namespace "reshape-system" -}}
  {{- fail (printf "volcano-reshape runs in the namespace reshape-system, not in %s: its certificate and its network policies name it. Give --namespace reshape-system --create-namespace." .Release.Namespace) -}}
{{- end -}}
{{- if and .Values.store.uri (ne .Values.store.type "external") -}}
  {{- fail "store.uri is given, but store.type is mongodb, which makes a MongoDB of its own: set store.type to external, or leave the address out." -}}
{{- end -}}
{{- if and .Values.certificate.issuerRef (ne .Values.certificate.from "certManager") -}}
  {{- fail "certificate.issuerRef is given, but nobody asks it: set certificate.from to certManager, or leave it out." -}}
{{- end -}}
{{- if and .Values.image.tag .Values.image.digest -}}
  {{- fail "image.tag and image.digest are both given: give one of them." -}}
{{- end -}}
{{- if has "without-volcano" .Values.components -}}
  {{- fail "components names without-volcano: set volcano.enabled to false in its place." -}}
{{- end -}}
{{- if and (not .Values.volcano.enabled) (has "pool" .Values.components) -}}
  {{- fail "components names pool, whose placeholders are scheduled by Volcano: leave it out, or set volcano.enabled to true." -}}
{{- end -}}
{{- $names := list -}}
{{- range .Values.queues -}}
  {{- if has .name $names -}}
    {{- fail (printf "queues names %s twice: name each queue once." .name) -}}
  {{- end -}}
  {{- $names = append $names .name -}}
{{- end -}}
{{- if lookup "v1" "Namespace" "" "kube-system" -}}{{- /* else nobody was asked, as by `helm template` */ -}}
  {{- if and .Values.volcano.enabled (not (.Capabilities.APIVersions.Has "scheduling.volcano.sh/v1beta1")) -}}
    {{- fail "Volcano is not installed in this cluster: install Volcano 1.10 or newer first, then run this again. Or set volcano.enabled=false: then batch Jobs with one pod, bare pods and records are reshaped under Kubernetes' own scheduler." -}}
  {{- end -}}
  {{- if and .Values.metrics.enabled (not (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1")) -}}
    {{- fail "metrics.enabled needs the Prometheus operator, which is not installed in this cluster: install it, or leave metrics.enabled out." -}}
  {{- end -}}
  {{- if and (eq .Values.certificate.from "certManager") (not (.Capabilities.APIVersions.Has "cert-manager.io/v1")) -}}
    {{- fail "certificate.from is certManager, which is not installed in this cluster: install cert-manager, or leave certificate.from out." -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{- /* Pods of ours: image, placement, resources. `configMaps`: those whose change needs new pods. */ -}}
{{- define "reshape.pods" -}}
{{- $values := .root.Values -}}
{{- $object := .object -}}
{{- $template := $object.spec.template -}}
{{- $pod := $template.spec -}}
{{- $component := index $object.metadata.labels "app.kubernetes.io/component" -}}
{{- $own := ternary $values.agent $values (eq $component "agent") -}}
{{- $resources := dict "coordinator" $values.coordinator "launcher" $values.launcher "agent" $values.agent "store" $values.store.mongodb -}}
{{- with $own.nodeSelector -}}
  {{- $_ := set $pod "nodeSelector" (mergeOverwrite (dict) ($pod.nodeSelector | default dict) .) -}}
{{- end -}}
{{- with $own.tolerations -}}
  {{- $_ := set $pod "tolerations" (concat ($pod.tolerations | default list) .) -}}
{{- end -}}
{{- with $own.affinity -}}
  {{- $_ := set $pod "affinity" (merge (dict) . ($pod.affinity | default dict)) -}}
{{- end -}}
{{- if and $own.priorityClassName (ne $component "setup") -}}
  {{- $_ := set $pod "priorityClassName" $own.priorityClassName -}}
{{- end -}}
{{- if eq $component "agent" -}}
  {{- with $values.agent.runtimeClassName -}}
    {{- $_ := set $pod "runtimeClassName" . -}}
  {{- end -}}
{{- end -}}
{{- with $values.imagePullSecrets -}}
  {{- $_ := set $pod "imagePullSecrets" . -}}
{{- end -}}
{{- range $container := concat ($pod.initContainers | default list) $pod.containers -}}
  {{- if eq $container.image "volcano-reshape" -}}
    {{- $_ := set $container "image" (include "reshape.image" $.root) -}}
    {{- $_ := set $container "imagePullPolicy" $values.image.pullPolicy -}}
  {{- else if and (eq $component "store") $values.store.mongodb.image -}}
    {{- $_ := set $container "image" $values.store.mongodb.image -}}
  {{- end -}}
  {{- with (get $resources $component | default dict).resources -}}
    {{- $_ := set $container "resources" (mergeOverwrite (dict) $container.resources .) -}}
  {{- end -}}
  {{- range $variable := $container.env | default list -}}
    {{- if eq ($variable.value | default "") "volcano-reshape" -}}{{- /* what the launcher puts into pods */ -}}
      {{- $_ := set $variable "value" (include "reshape.image" $.root) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- if and (has $component (list "coordinator" "launcher")) (ne $object.kind "Job") -}}
  {{- $_ := set $object.spec "replicas" (get $values $component).replicas -}}
{{- end -}}
{{- if eq $component "coordinator" -}}{{- /* all of them at once: no two versions act beside each other */ -}}
  {{- $_ := set $object.spec.strategy.rollingUpdate "maxUnavailable" $values.coordinator.replicas -}}
{{- end -}}
{{- if hasKey ($template.metadata.labels | default dict) "app.kubernetes.io/managed-by" -}}
  {{- $_ := set $template.metadata.labels "app.kubernetes.io/managed-by" .root.Release.Service -}}
{{- end -}}
{{- $annotations := mergeOverwrite (dict) (dig "metadata" "annotations" dict $template) $values.podAnnotations -}}
{{- if eq $component "agent" -}}
  {{- $annotations = mergeOverwrite $annotations $values.agent.podAnnotations -}}
{{- end -}}
{{- range $map := .configMaps -}}
  {{- if contains (printf "%q" $map.metadata.name) (toJson $pod) -}}{{- /* kustomize changes the ConfigMap's name instead */ -}}
    {{- $_ := set $annotations (printf "checksum/%s" $map.metadata.name) (toJson $map.data | sha256sum | trunc 16) -}}
  {{- end -}}
{{- end -}}
{{- with $annotations -}}
  {{- $_ := set $template.metadata "annotations" . -}}
{{- end -}}
{{- end -}}

{{- /*
The Job that makes keys and certificate. A Job cannot be changed: each revision has its own name, and so needs no end
of life, which would remove it under the eyes of `helm install --wait`.
*/ -}}
{{- define "reshape.setup" -}}
{{- $container := first .object.spec.template.spec.containers -}}
{{- if ne .root.Values.certificate.from "setup" -}}
  {{- $_ := set $container "args" (append $container.args "--keep-certificate") -}}
{{- end -}}
{{- $_ := unset .object.spec "ttlSecondsAfterFinished" -}}
{{- $_ := set .object.metadata "name" (printf "reshape-setup-%s" (list .root.Release.Revision .object.spec | toJson | sha256sum | trunc 8)) -}}
{{- end -}}

{{- define "reshape.configMap" -}}
{{- $values := .root.Values -}}
{{- if eq .object.metadata.name "reshape-settings" -}}
  {{- $_ := set .object.data "RESHAPE_IMAGE_PULL_POLICY" $values.image.pullPolicy -}}
  {{- range $name, $value := $values.settings -}}
    {{- if kindIs "bool" $value -}}
      {{- $value = ternary 1 0 $value -}}
    {{- else if and (kindIs "float64" $value) (eq $value (floor $value)) -}}
      {{- $value = int64 $value -}}{{- /* else 3000000 is written as 3e+06 */ -}}
    {{- end -}}
    {{- $_ := set $.object.data $name (toString $value) -}}
  {{- end -}}
{{- else if and (eq .object.metadata.name "reshape-emulated-gpus") $values.emulatedGPUs -}}
  {{- $lines := list -}}
  {{- range $node, $gpus := $values.emulatedGPUs -}}
    {{- $lines = append $lines (printf "%s=%s" $node $gpus) -}}
  {{- end -}}
  {{- $_ := set .object.data "gpus" (join "\n" $lines) -}}
{{- end -}}
{{- end -}}

{{- /* The webhooks, with the queues that they look at now: the launcher keeps that list, and owns it. */ -}}
{{- define "reshape.webhooks" -}}
{{- $queues := list -}}
{{- range .root.Values.queues -}}
  {{- $queues = append $queues .name -}}
{{- end -}}
{{- $there := lookup .object.apiVersion .object.kind "" .object.metadata.name -}}
{{- range $hook := .object.webhooks -}}
  {{- range $expression := dig "objectSelector" "matchExpressions" list $hook -}}
    {{- if eq $expression.key "volcano.sh/queue-name" -}}
      {{- $_ := set $expression "values" ($queues | default (list "none.volcano-reshape")) -}}
      {{- range $old := dig "webhooks" list $there -}}
        {{- range $known := dig "objectSelector" "matchExpressions" list $old -}}
          {{- if and (eq $old.name $hook.name) (eq $known.key $expression.key) -}}
            {{- $_ := set $expression "values" $known.values -}}
          {{- end -}}
        {{- end -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- if eq .root.Values.certificate.from "certManager" -}}
  {{- $_ := set .object.metadata "annotations" (dict "cert-manager.io/inject-ca-from" "reshape-system/reshape-webhook") -}}
{{- end -}}
{{- end -}}

{{- define "reshape.volume" -}}
{{- $mongodb := .root.Values.store.mongodb -}}
{{- range $claim := .object.spec.volumeClaimTemplates -}}
  {{- $_ := set $claim.spec.resources.requests "storage" $mongodb.storage -}}
  {{- with $mongodb.storageClassName -}}
    {{- $_ := set $claim.spec "storageClassName" . -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{- define "reshape.metrics" -}}
{{- $values := .root.Values -}}
{{- if eq .object.kind "NetworkPolicy" -}}
  {{- range $rule := .object.spec.ingress -}}
    {{- range $from := $rule.from -}}
      {{- $_ := set $from.namespaceSelector.matchLabels "kubernetes.io/metadata.name" $values.metrics.prometheusNamespace -}}
    {{- end -}}
  {{- end -}}
{{- else if ne .object.kind "ConfigMap" -}}
  {{- $_ := set .object.metadata "labels" (mergeOverwrite .object.metadata.labels $values.metrics.labels) -}}
{{- end -}}
{{- end -}}

{{- /* Objects that `helm uninstall` leaves: jobs run in the queues, and Slamls would go with their definition. */ -}}
{{- define "reshape.keep" -}}
{{- $_ := set .object.metadata "annotations" (merge (dict "helm.sh/resource-policy" "keep") (.object.metadata.annotations | default dict)) -}}
{{- end -}}
