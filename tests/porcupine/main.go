// Checks histories with Porcupine: the second opinion on fencepost's own checker.
//
//	porcupine FILE…    one line of output for each: its name, and "valid" or "violated"
//
// A file is what `fencepost check --porcupine FILE` writes: one operation a line.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"

	"github.com/anishathalye/porcupine"
)

// Input is what was asked for.
type Input struct {
	Op       string  `json:"op"`
	Resource string  `json:"resource"`
	Token    *int64  `json:"token"`
	Value    *string `json:"value"`
	Rule     string  `json:"rule"`
	Key      *string `json:"key"`
}

// Output is what was answered. Event is "ok", "refused" or "unknown".
type Output struct {
	Event    string   `json:"event"`
	Read     bool     `json:"read"`
	Value    *string  `json:"value"`
	Token    *int64   `json:"token"`
	Values   []string `json:"values"`
	Replayed bool     `json:"replayed"`
	Reason   *string  `json:"reason"`
	Mark     *int64   `json:"mark"`
}

type line struct {
	ClientId int
	Input    Input
	Call     int64
	Output   Output
	Return   int64
}

func read(path string) ([]porcupine.Operation, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var operations []porcupine.Operation
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<26)
	for lines.Scan() {
		var each line
		if err := json.Unmarshal(lines.Bytes(), &each); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		operations = append(operations, porcupine.Operation{
			ClientId: each.ClientId, Input: each.Input, Call: each.Call, Output: each.Output, Return: each.Return,
		})
	}
	return operations, lines.Err()
}

func main() {
	for _, path := range os.Args[1:] {
		operations, err := read(path)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		answer := "valid"
		if !porcupine.CheckOperations(resource, operations) {
			answer = "violated"
		}
		fmt.Println(path, answer)
	}
}
