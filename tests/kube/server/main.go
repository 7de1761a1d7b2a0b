// Command kube-apiserver is Kubernetes' own, built from its Go modules for tests (.ci/kube-apiserver).
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	os.Exit(cli.Run(app.NewAPIServerCommand()))
}
