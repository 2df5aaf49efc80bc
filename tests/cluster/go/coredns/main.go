// Command coredns is CoreDNS with only the plugins that a cluster's own names need: fewer to build, and none
// that forwards, so that nothing asked here leaves the test bed.
package main

import (
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
)

func main() { coremain.Run() }
