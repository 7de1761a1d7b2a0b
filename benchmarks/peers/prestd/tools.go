//go:build tools

package tools

import _ "github.com/prest/prest/cmd/prestd"
