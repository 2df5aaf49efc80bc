{{- /*
Reads folders as kustomize does: resources, generated ConfigMaps, labels, patches. What a kustomization.yaml has that
this does not read is refused, so that nothing of it can be lost.
*/ -}}

{{- /* The objects of all folders that the values ask for, patched, as JSON {"items": [...]}; of the root. */ -}}
{{- define "reshape.all" -}}
{{- $files := .Files -}}
{{- $folders := list "base" -}}
{{- if eq .Values.store.type "mongodb" -}}
  {{- $folders = append $folders "overlays/mongodb" -}}
{{- end -}}
{{- $components := .Values.components -}}
{{- if not .Values.volcano.enabled -}}
  {{- $components = append $components "without-volcano" -}}
{{- end -}}
{{- range $name := $components -}}
  {{- $folders = append $folders (printf "components/%s" $name) -}}
  {{- if not ($files.Get (printf "components/%s/kustomization.yaml" $name)) -}}
    {{- fail (printf "components names %s, but the chart has no folder components/%s: see which ones there are." $name $name) -}}
  {{- end -}}
{{- end -}}
{{- $objects := list -}}
{{- range $folder := $folders -}}
  {{- $found := include "reshape.folder" (dict "files" $files "folder" $folder) | fromJson -}}
  {{- $objects = concat $objects $found.items -}}
  {{- range $patch := $found.patches -}}
    {{- $kept := list -}}
    {{- range $object := $objects -}}
      {{- $is := and (eq $object.kind $patch.target.kind) (eq $object.metadata.name $patch.target.name) -}}
      {{- if not (and $is (hasPrefix "$patch: delete" (trim $patch.patch))) -}}
        {{- $kept = append $kept $object -}}
      {{- end -}}
    {{- end -}}
    {{- $objects = $kept -}}
    {{- range $object := $objects -}}
      {{- if and (eq $object.kind $patch.target.kind) (eq $object.metadata.name $patch.target.name) -}}
        {{- if hasPrefix "-" (trim $patch.patch) -}}
          {{- range $operation := fromYamlArray $patch.patch -}}
            {{- include "reshape.operate" (dict "object" $object "operation" $operation) -}}
          {{- end -}}
        {{- else -}}
          {{- include "reshape.merge" (dict "into" $object "from" (fromYaml $patch.patch)) -}}
        {{- end -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- dict "items" $objects | toJson -}}
{{- end -}}

{{- /* Carry out an operation of a JSON patch on an object. */ -}}
{{- define "reshape.operate" -}}
{{- $steps := list -}}
{{- range $step := splitList "/" (trimPrefix "/" .operation.path) -}}
  {{- $steps = append $steps ($step | replace "~1" "/" | replace "~0" "~") -}}
{{- end -}}
{{- $above := dict -}}
{{- $at := .object -}}
{{- range $step := initial $steps -}}
  {{- $above = dict "in" $at "by" $step -}}
  {{- if kindIs "slice" $at -}}
    {{- $at = index $at (atoi $step) -}}
  {{- else -}}
    {{- $at = get $at $step -}}
  {{- end -}}
{{- end -}}
{{- $last := last $steps -}}
{{- if not (has .operation.op (list "add" "replace" "remove")) -}}
  {{- fail (printf "The chart cannot do `%s` of a patch: teach templates/_kustomize.tpl." .operation.op) -}}
{{- else if kindIs "map" $at -}}
  {{- if eq .operation.op "remove" -}}
    {{- $_ := unset $at $last -}}
  {{- else -}}
    {{- $_ := set $at $last .operation.value -}}
  {{- end -}}
{{- else if and (kindIs "slice" $at) (eq $last "-") (eq .operation.op "add") (kindIs "map" $above.in) -}}
  {{- $_ := set $above.in $above.by (append $at .operation.value) -}}
{{- else -}}
  {{- fail (printf "The chart cannot patch %s: teach templates/_kustomize.tpl." .operation.path) -}}
{{- end -}}
{{- end -}}

{{- /* Write one object into another, as a strategic merge patch does; entries of lists are found by their key. */ -}}
{{- define "reshape.merge" -}}
{{- $into := .into -}}
{{- $keys := dict "containers" "name" "initContainers" "name" "env" "name" "volumes" "name" "volumeMounts" "mountPath" -}}
{{- range $name, $value := .from -}}
  {{- $there := get $into $name -}}
  {{- $key := get $keys $name -}}
  {{- if hasPrefix "$" $name -}}
    {{- fail (printf "The chart cannot read `%s` of a patch: teach templates/_kustomize.tpl." $name) -}}
  {{- else if kindIs "invalid" $value -}}
    {{- $_ := unset $into $name -}}
  {{- else if and (kindIs "map" $value) (kindIs "map" $there) -}}
    {{- include "reshape.merge" (dict "into" $there "from" $value) -}}
  {{- else if and $key (kindIs "slice" $value) (kindIs "slice" $there) -}}
    {{- range $item := $value -}}
      {{- $known := dict -}}
      {{- range $old := $there -}}
        {{- if eq (get $old $key) (get $item $key) -}}
          {{- $known = $old -}}
        {{- end -}}
      {{- end -}}
      {{- if $known -}}
        {{- include "reshape.merge" (dict "into" $known "from" $item) -}}
      {{- else -}}
        {{- $there = append $there $item -}}
      {{- end -}}
    {{- end -}}
    {{- $_ := set $into $name $there -}}
  {{- else -}}
    {{- $_ := set $into $name $value -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{- /* The objects and patches of a folder, as JSON {"items": [...], "patches": [...]}; of (dict "files" .Files "folder" "base"). */ -}}
{{- define "reshape.folder" -}}
{{- $folder := .folder -}}
{{- $files := .files -}}
{{- $kustomization := $files.Get (printf "%s/kustomization.yaml" $folder) | fromYaml -}}
{{- $read := list "apiVersion" "kind" "resources" "namespace" "configMapGenerator" "labels" "patches" -}}
{{- $elsewhere := list "images" "replacements" -}}{{- /* by _values.tpl; a test compares with kustomize */ -}}
{{- range $key := keys $kustomization | sortAlpha -}}
  {{- if not (has $key (concat $read $elsewhere)) -}}
    {{- fail (printf "The chart cannot read `%s` of %s/kustomization.yaml: teach templates/_kustomize.tpl." $key $folder) -}}
  {{- end -}}
{{- end -}}
{{- $objects := list -}}
{{- range $name := $kustomization.resources -}}
  {{- if hasSuffix ".yaml" $name -}}
    {{- $text := $files.Get (printf "%s/%s" $folder $name) -}}
    {{- if not $text -}}
      {{- fail (printf "The chart lacks %s/%s, which its kustomization.yaml names." $folder $name) -}}
    {{- end -}}
    {{- range $document := regexSplit "(?m)^---$" $text -1 -}}
      {{- $object := fromYaml $document -}}
      {{- if hasKey $object "Error" -}}
        {{- fail (printf "%s/%s cannot be read: %s" $folder $name $object.Error) -}}
      {{- end -}}
      {{- $objects = append $objects $object -}}
    {{- end -}}
  {{- else if ne $name "../../base" -}}
    {{- fail (printf "The chart cannot read the resource `%s` of %s/kustomization.yaml: teach templates/_kustomize.tpl." $name $folder) -}}
  {{- end -}}
{{- end -}}
{{- range $generator := $kustomization.configMapGenerator | default list -}}
  {{- $data := dict -}}
  {{- range $literal := $generator.literals | default list -}}
    {{- $pair := splitn "=" 2 $literal -}}
    {{- $_ := set $data $pair._0 $pair._1 -}}
  {{- end -}}
  {{- range $file := $generator.files | default list -}}
    {{- $_ := set $data $file ($files.Get (printf "%s/%s" $folder $file)) -}}
  {{- end -}}
  {{- $metadata := dict "name" $generator.name "labels" (dig "options" "labels" dict $generator) -}}
  {{- if $generator.namespace -}}
    {{- $_ := set $metadata "namespace" $generator.namespace -}}
  {{- end -}}
  {{- $objects = append $objects (dict "apiVersion" "v1" "kind" "ConfigMap" "metadata" $metadata "data" $data) -}}
{{- end -}}
{{- range $object := $objects -}}
  {{- if and $kustomization.namespace (not $object.metadata.namespace) -}}
    {{- $_ := set $object.metadata "namespace" $kustomization.namespace -}}
  {{- end -}}
  {{- range $label := $kustomization.labels | default list -}}
    {{- include "reshape.label" (dict "object" $object "labels" $label.pairs "templates" $label.includeTemplates) -}}
  {{- end -}}
{{- end -}}
{{- dict "items" $objects "patches" ($kustomization.patches | default list) | toJson -}}
{{- end -}}

{{- /* Add labels to an object, and to the pods that it starts. */ -}}
{{- define "reshape.label" -}}
{{- $_ := set .object.metadata "labels" (merge (dict) .labels (.object.metadata.labels | default dict)) -}}
{{- $template := dig "spec" "template" nil .object -}}
{{- if and .templates $template -}}
  {{- $_ := set $template.metadata "labels" (merge (dict) .labels ($template.metadata.labels | default dict)) -}}
{{- end -}}
{{- end -}}
