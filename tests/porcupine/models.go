package main

import "github.com/anishathalye/porcupine"

// state is what a resource is: the mark and the row of a register, the highest token of a lock, the elements of a set.
// keys are the Idempotency-Keys that had an effect. States are not changed: a step makes another one.
type state struct {
	mark  int64
	value *string
	set   map[string]bool
	keys  map[string]bool
}

// resource is the model of one resource. A history is checked resource by resource.
var resource = porcupine.Model{
	Partition: partition,
	Init:      func() interface{} { return state{} },
	Step: func(before, input, output interface{}) (bool, interface{}) {
		return step(before.(state), input.(Input), output.(Output))
	},
	Equal: func(one, other interface{}) bool {
		a, b := one.(state), other.(state)
		return a.mark == b.mark && same(a.value, b.value) && alike(a.set, b.set) && alike(a.keys, b.keys)
	},
}

func partition(history []porcupine.Operation) [][]porcupine.Operation {
	parts := map[string][]porcupine.Operation{}
	for _, operation := range history {
		name := operation.Input.(Input).Resource
		parts[name] = append(parts[name], operation)
	}
	all := make([][]porcupine.Operation, 0, len(parts))
	for _, part := range parts {
		all = append(all, part)
	}
	return all
}

func step(before state, in Input, out Output) (bool, state) {
	switch {
	case out.Replayed && (out.Event == "refused" || before.keys[*in.Key]):
		// The answer to an operation that was done before. A refusal may have been stored too.
		return true, before
	case out.Replayed:
		// It was done itself, and the gateway has looked its answer up.
		return effect(before, in, out)
	case out.Event == "refused":
		return refusal(before, in, out), before
	case out.Event == "unknown":
		// It returns at the end of time, so it is tried at every moment. Where it would be refused, it changes nothing.
		if in.Key != nil && before.keys[*in.Key] {
			return true, before
		}
		if done, after := effect(before, in, out); done {
			return true, after
		}
		return true, before
	case in.Key != nil && before.keys[*in.Key]:
		return false, before
	}
	return effect(before, in, out)
}

func effect(before state, in Input, out Output) (bool, state) {
	after := before
	if in.Key != nil {
		after.keys = with(before.keys, *in.Key)
	}
	switch in.Op {
	case "read":
		return out.Event == "unknown" || (same(out.Value, before.value) && (out.Token == nil || *out.Token == before.mark)), after
	case "acquire":
		if out.Token == nil {
			return true, after
		}
		after.mark = *out.Token
		return *out.Token > before.mark, after
	case "release":
		return true, after
	case "add":
		after.set = with(before.set, *in.Value)
		return true, after
	case "read_set":
		return out.Event == "unknown" || alike(before.set, setOf(out.Values)), after
	}
	if in.Token != nil {
		if *in.Token < before.mark || (*in.Token == before.mark && in.Rule != "epoch") {
			return false, before
		}
		after.mark = *in.Token
	}
	switch in.Op {
	case "claim":
		return !out.Read || same(out.Value, before.value), after
	case "delete":
		after.value = nil
	default:
		after.value = in.Value
	}
	return true, after
}

func refusal(before state, in Input, out Output) bool {
	if out.Reason == nil || !(in.Op == "write" || in.Op == "delete" || in.Op == "claim" || in.Op == "read") {
		return true
	}
	var token int64
	if in.Token != nil {
		token = *in.Token
	}
	named := out.Mark == nil || *out.Mark == before.mark
	switch *out.Reason {
	case "stale":
		return named && before.mark > token
	case "spent":
		return named && before.mark == token
	}
	return named
}

func same(one, other *string) bool {
	if one == nil || other == nil {
		return one == other
	}
	return *one == *other
}

func with(set map[string]bool, element string) map[string]bool {
	after := map[string]bool{element: true}
	for each := range set {
		after[each] = true
	}
	return after
}

func setOf(elements []string) map[string]bool {
	set := map[string]bool{}
	for _, element := range elements {
		set[element] = true
	}
	return set
}

func alike(one, other map[string]bool) bool {
	for each := range one {
		if !other[each] {
			return false
		}
	}
	return len(one) == len(other)
}
