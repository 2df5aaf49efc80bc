// The test bed's own smallest image: Kubernetes' pause container, and a few questions a pod can ask of its network.
module volcano-reshape.test/pause

go 1.24.0
