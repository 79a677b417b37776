// Judges histories of registers with Porcupine: porcupine FILE...; exit status 1 if one is not linearizable.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

type input struct {
	Op            string
	Key, Old, New int64
}

type output struct {
	Value       int64
	Done, Known bool
}

type line struct {
	ClientId     int
	Input        input
	Call, Return int64
	Output       output
}

// Each key is a register of its own; 0 stands for one that holds nothing.
var model = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[int64][]porcupine.Operation{}
		for _, operation := range history {
			key := operation.Input.(input).Key
			byKey[key] = append(byKey[key], operation)
		}
		var parts [][]porcupine.Operation
		for _, part := range byKey {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() interface{} { return int64(0) },
	Step: func(state, in, out interface{}) (bool, interface{}) {
		value, asked, answer := state.(int64), in.(input), out.(output)
		switch asked.Op {
		case "read":
			return answer.Value == value, value
		case "write":
			return true, asked.New
		}
		done := asked.Old == value
		if answer.Known && answer.Done != done {
			return false, value
		}
		if done {
			return true, asked.New
		}
		return true, value
	},
	Equal: func(a, b interface{}) bool { return a.(int64) == b.(int64) },
}

func judge(path string) (bool, error) {
	file, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer file.Close()
	var history []porcupine.Operation
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var one line
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			return false, err
		}
		history = append(history, porcupine.Operation{
			ClientId: one.ClientId, Input: one.Input, Call: one.Call, Output: one.Output, Return: one.Return,
		})
	}
	if err := lines.Err(); err != nil {
		return false, err
	}
	result := porcupine.CheckOperationsTimeout(model, history, 10*time.Minute)
	fmt.Printf("%s: %d operations on registers: %s\n", path, len(history), result)
	return result == porcupine.Ok, nil
}

func main() {
	failed := len(os.Args) < 2
	for _, path := range os.Args[1:] {
		ok, err := judge(path)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		failed = failed || !ok
	}
	if failed {
		os.Exit(1)
	}
}
