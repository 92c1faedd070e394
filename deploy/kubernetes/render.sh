#!/bin/sh
# Prints deploy/kubernetes/MODE.yaml (MODE: proxy or picker): what the chart makes, for who has no Helm.
#   HELM: the program (helm)
set -eu
chart=$(dirname "$0")/chart
case $1 in
proxy)
  what='kvgate as a proxy: its clients speak with the Service kvgate, on port 8000.'
  values=$chart/values.yaml
  name="the name and the pods' label of your model" ;;
picker)
  what="kvgate as the endpoint picker of an InferencePool, whose endpointPickerRef is the Service kvgate, port 9002."
  values=$chart/values-picker.yaml
  name="the name of your pool" ;;
esac
cat <<END
# $what
# Put $name in the place of my-model, and your image; rbac.yaml beside it has the permissions.
#   sed s/POOL/my-model/ rbac.yaml | kubectl apply -f -
#   kubectl apply -f $1.yaml
# After a change of the ConfigMap: kubectl rollout restart deployment/kvgate
#
# Made by \`make manifests\`, out of chart/.
END
# A file that is edited by hand would keep a checksum that is not its own.
"${HELM:-helm}" template kvgate "$chart" --values "$values" --set rbac=false | sed '/^ *annotations: {checksum/d'
