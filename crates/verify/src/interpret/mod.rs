// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every function of the section, interpreted over abstract values until nothing changes.
//!
//! A function that nothing in the section calls is an *entry*: the code outside calls it with the
//! lookup (two words, or their address), the address of the result and the thread's `rseq_cs` field
//! (`restart/armed.rs` of the runtime). So is one that no entry leads to, which only itself or its
//! like call. Every other function begins with what its callers pass, joined over all of them. A
//! call is taken to keep the callee-saved registers and the caller's frame; each function's returns
//! and stores are checked for that (an induction over the depth of calls).
//!
//! This file follows the control flow until nothing changes. What an instruction does to the state
//! is in `transfer.rs`, what it may do in `rules.rs`.

mod rules;
mod transfer;

use crate::code::{self, Code};
use crate::error::Error;
use crate::image::Image;
use crate::report::{Report, Rule};
use crate::table::{self, Kind};
use crate::value::{ARGUMENTS, Armed, RCX, RSP, SAVED, State, Value};
use iced_x86::{FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind};
use rules::{Rules, is_system};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use transfer::{index, refined, result, stack_operation, table_entry, write_registers};

/// Limits of the work: interpreted instructions over all rounds, and states and stack words kept at
/// a time. Real sections need thousands.
const MOST_STEPS: usize = 1 << 21;
const MOST_KEPT: usize = 1 << 20;

/// The arguments of a function.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Context {
    arguments: [Value; 6],
    armed: Armed,
}

impl Context {
    const ENTRY: Context = Context {
        arguments: [
            Value::First,
            Value::Result,
            Value::Cs,
            Value::Unknown,
            Value::Unknown,
            Value::Unknown,
        ],
        armed: Armed::No,
    };

    /// The self-test's probe takes itself, a number, and the `rseq_cs` field.
    const PROBE: Context = Context {
        arguments: [
            Value::First,
            Value::Unknown,
            Value::Cs,
            Value::Unknown,
            Value::Unknown,
            Value::Unknown,
        ],
        armed: Armed::No,
    };

    fn join(self, other: Context) -> Context {
        let mut joined = self;
        joined.arguments.iter_mut().zip(other.arguments).for_each(|(a, b)| *a = a.join(b));
        if self.armed != other.armed {
            joined.armed = Armed::Maybe;
        }
        joined
    }
}

struct Interpreter<'a> {
    image: &'a Image<'a>,
    code: &'a Code,
    info: InstructionInfoFactory,
    contexts: BTreeMap<u64, Context>,
    rules: Rules<'a>,
    steps: usize,
    /// Whether each instruction has been interpreted.
    reached: Vec<bool>,
    /// Something that other functions depend on has changed.
    changed: bool,
}

pub(crate) fn examine(image: &Image<'_>, code: &Code) -> Result<Report, Error> {
    let mut interpreter = Interpreter {
        image,
        code,
        info: InstructionInfoFactory::new(),
        contexts: BTreeMap::new(),
        rules: Rules::new(image, code),
        steps: 0,
        reached: vec![false; code.instructions.len()],
        changed: false,
    };
    let inner = interpreter.inner();
    let mut entries = 0;
    let mut found: Vec<u64> =
        code.functions.iter().copied().filter(|f| !inner.contains(f)).collect();
    loop {
        entries += found.len();
        for entry in found {
            let probe = interpreter.rules.probes.contains(&entry);
            let context = if probe { Context::PROBE } else { Context::ENTRY };
            interpreter.contexts.insert(entry, context);
        }
        interpreter.fixpoint()?;
        // Behind a finding the control flow is not known: nobody should hear that a helper that is
        // called there must arm.
        found = if interpreter.rules.clean() { interpreter.unreached() } else { Vec::new() };
        if found.is_empty() {
            break;
        }
    }
    if interpreter.rules.clean() {
        interpreter.find_unreached();
    }
    Ok(Report {
        bytes: image.bytes.len() as u64,
        functions: code.functions.len(),
        entries,
        instructions: code.instructions.len(),
        findings: interpreter.rules.into_findings(),
    })
}

/// Where an instruction goes on.
enum Next {
    Nowhere,
    To(Vec<(usize, State)>),
}

impl Interpreter<'_> {
    /// Functions that others in the section call or jump to.
    fn inner(&self) -> BTreeSet<u64> {
        let mut inner = self.code.called.clone();
        for i in &self.code.instructions {
            let begins_another = |target: &u64| {
                self.code.functions.contains(target) && self.code.function(i.ip()) != Some(*target)
            };
            inner.extend(code::target(i).filter(begins_another));
        }
        inner
    }

    /// Functions that nothing interpreted so far calls or jumps to.
    fn unreached(&self) -> Vec<u64> {
        let functions = self.code.functions.iter().copied();
        functions.filter(|f| !self.contexts.contains_key(f)).collect()
    }

    /// Finds code that was not interpreted: it may be called from outside although the file does
    /// not say that a function begins there.
    fn find_unreached(&mut self) {
        let code = self.code;
        let mut missed_before = false;
        for ((i, padding), reached) in
            code.instructions.iter().zip(code.padding()).zip(&self.reached)
        {
            // A trap does no harm.
            let trap = matches!(i.mnemonic(), Mnemonic::Ud2 | Mnemonic::Int3);
            let missed = !reached && !padding && !trap && !self.image.covers(i.ip());
            if missed && !missed_before {
                self.rules.find(
                    i,
                    Rule::Unreached,
                    "nothing in the section leads here, and no symbol says that a function begins here: verify the file before symbols are removed",
                );
            }
            missed_before = missed;
        }
    }

    fn fixpoint(&mut self) -> Result<(), Error> {
        self.changed = true;
        while std::mem::take(&mut self.changed) {
            self.rules.restart();
            let arming = self.rules.arming.len();
            for function in self.contexts.keys().copied().collect::<Vec<_>>() {
                self.function(function)?;
            }
            self.changed |= self.rules.arming.len() != arming;
        }
        Ok(())
    }

    fn function(&mut self, start: u64) -> Result<(), Error> {
        let code = self.code;
        let (Some(first), Some(&context)) = (code.index(start), self.contexts.get(&start)) else {
            return Ok(());
        };
        let mut states = BTreeMap::from([(first, State::entry(context.arguments, context.armed))]);
        let mut kept = 1;
        let mut work = VecDeque::from([first]);
        while let Some(at) = work.pop_front() {
            let Some(state) = states.get(&at).cloned() else { continue };
            self.reached[at] = true;
            self.steps += 1;
            if self.steps > MOST_STEPS || kept > MOST_KEPT {
                return Err(Error::TooLarge("the section's control flow".into()));
            }
            let Next::To(next) = self.step(start, &code.instructions[at], state, at) else {
                continue;
            };
            for (to, state) in next {
                match states.get_mut(&to) {
                    None => {
                        kept += 1 + state.slots();
                        states.insert(to, state);
                        work.push_back(to);
                    }
                    Some(known) => {
                        if known.join(&state) {
                            work.push_back(to);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Interprets one instruction.
    fn step(&mut self, function: u64, i: &Instruction, mut state: State, at: usize) -> Next {
        if i.is_invalid() {
            // The scan takes such bytes behind an end for padding.
            self.rules.undecodable(i);
            return Next::Nowhere;
        }
        if is_system(i) {
            return Next::Nowhere;
        }
        match i.flow_control() {
            FlowControl::Next => {
                self.execute(function, i, &mut state);
                self.go_on(i, at, state)
            }
            FlowControl::Return => {
                self.rules.check_return(i, &state);
                Next::Nowhere
            }
            FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
                self.branch(function, i, state, at)
            }
            FlowControl::Call | FlowControl::IndirectCall => {
                self.call(function, i, &mut state);
                self.go_on(i, at, state)
            }
            FlowControl::IndirectBranch => self.indirect_branch(i, state),
            // A trap: the kernel sends the thread to the abort handler before it delivers the
            // signal. (`int` has been found by the scan.)
            FlowControl::Interrupt | FlowControl::Exception => Next::Nowhere,
            FlowControl::XbeginXabortXend => self.go_on(i, at, state),
        }
    }

    fn call(&mut self, function: u64, i: &Instruction, state: &mut State) {
        self.rules.check_push(i, state);
        let target = match code::target(i) {
            None if i.op0_kind() == OpKind::Register => {
                match index(i.op0_register()).map(|r| state.registers[r]) {
                    Some(Value::Address(target) | Value::Pointer(target)) => Some(target),
                    _ => None,
                }
            }
            target => target,
        };
        match target {
            None => self.rules.goes_anywhere(i),
            Some(target) if self.code.index(target).is_some() => {
                self.pass(target, state);
                if self.rules.passes_arming(target, function) {
                    state.armed = Armed::Maybe;
                }
            }
            // The scan has found direct calls already; this one is through a register.
            Some(target) => self.rules.leads_outside(i, "calls", target),
        }
        state.after_call();
    }

    fn go_on(&mut self, i: &Instruction, at: usize, state: State) -> Next {
        match self.code.instructions.get(at + 1) {
            Some(next) if next.ip() == i.next_ip() => Next::To(vec![(at + 1, state)]),
            _ => {
                self.rules.find(
                    i,
                    Rule::Control,
                    "runs off the end of the section, or into a function's middle",
                );
                Next::Nowhere
            }
        }
    }

    fn branch(&mut self, function: u64, i: &Instruction, mut state: State, at: usize) -> Next {
        use Mnemonic::{Loop, Loope, Loopne};
        if matches!(i.mnemonic(), Loop | Loope | Loopne) {
            state.set(RCX, Value::Unknown);
        }
        let mut next = Vec::new();
        let condition = i.condition_code();
        let target = code::target(i);
        if let Some((target, to)) = target.and_then(|t| Some((t, self.code.index(t)?))) {
            let tail_call = self.code.functions.contains(&target)
                && target != function
                && state.registers[RSP] == Value::Stack(0)
                && SAVED.iter().all(|&r| state.registers[r] == Value::Entry(r));
            if tail_call {
                self.pass(target, &state);
                self.rules.passes_arming(target, function);
            } else {
                next.push((to, refined(&state, condition, true)));
            }
        }
        if i.flow_control() == FlowControl::ConditionalBranch {
            if let Next::To(more) = self.go_on(i, at, refined(&state, condition, false)) {
                next.extend(more);
            }
        }
        Next::To(next)
    }

    fn indirect_branch(&mut self, i: &Instruction, state: State) -> Next {
        let value = match i.op0_kind() {
            OpKind::Register => {
                index(i.op0_register()).map_or(Value::Unknown, |r| state.registers[r])
            }
            OpKind::Memory => table_entry(i, &state, Kind::Address),
            _ => Value::Unknown,
        };
        let Value::Target { table, kind, last } = value else {
            self.rules.goes_anywhere(i);
            return Next::Nowhere;
        };
        self.steps += last.min(table::LARGEST) as usize;
        match table::targets(self.image, self.code, table, kind, last) {
            Ok(targets) => Next::To(targets.into_iter().map(|t| (t, state.clone())).collect()),
            Err(why) => {
                self.rules.find(i, Rule::Indirect, why);
                Next::Nowhere
            }
        }
    }

    /// Interprets an instruction after which the next one follows.
    fn execute(&mut self, function: u64, i: &Instruction, state: &mut State) {
        use Mnemonic::*;
        let result = result(self.image, i, state);
        // In terms of the stack pointer before it moves, as the decoder gives the addresses.
        self.memory(function, i, state, result);
        if matches!(i.mnemonic(), Push | Pop | Leave) {
            stack_operation(i, state, result);
        }
        let used = self.info.info(i).used_registers().iter();
        let written = used
            .filter(|u| {
                !matches!(
                    u.access(),
                    OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess | OpAccess::None
                )
            })
            .map(|u| u.register());
        write_registers(i, written, result, state);
    }

    /// Checks what the instruction reads and writes, and remembers what it writes to the frame.
    fn memory(&mut self, function: u64, i: &Instruction, state: &mut State, value: Value) {
        let uses = self.info.info(i).used_memory();
        self.rules.memory(function, i, uses, state, value);
    }

    /// Notes what a call of `target` passes.
    fn pass(&mut self, target: u64, state: &State) {
        let context = Context {
            arguments: ARGUMENTS.map(|r| state.registers[r].passed(state.registers[RSP])),
            armed: state.armed,
        };
        let joined = self.contexts.get(&target).map_or(context, |known| known.join(context));
        if self.contexts.insert(target, joined) != Some(joined) {
            self.changed = true;
        }
    }
}
