// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every function of the section, interpreted over abstract values until nothing changes.
//!
//! A function that nothing in the section calls is an *entry*: the code outside calls it with the lookup (two words, or where it is), the
//! result's place and the thread's `rseq_cs` field (`restart/armed.rs` of the runtime). The others begin with what their callers
//! pass, joined over all of them. A callee is taken to keep the callee-saved registers and its caller's frame, which is
//! checked at its returns and stores: induction over the depth of calls.

use crate::code::{self, Code};
use crate::image::{Fixup, Image};
use crate::table::{self, Kind};
use crate::value::{ARGUMENTS, Armed, RBP, RSP, SAVED, State, Value};
use crate::{Error, Finding, Report, Rule, descriptor};
use iced_x86::{
    ConditionCode, FlowControl, Formatter, Instruction, InstructionInfoFactory, IntelFormatter,
    Mnemonic, OpAccess, OpKind, Register,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Interpreted instructions, over all rounds; states and stack words kept at a time. Real sections need thousands.
const MOST_STEPS: usize = 1 << 21;
const MOST_KEPT: usize = 1 << 20;

/// What callers pass to a function.
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
    /// Functions that arm or disarm.
    arming: BTreeSet<u64>,
    /// The self-tests' probes, one per descriptor.
    probes: BTreeSet<u64>,
    /// The abort handlers, one per descriptor: going there is what the kernel does in an abort.
    aborts: BTreeSet<u64>,
    findings: BTreeMap<(u64, Rule), String>,
    steps: usize,
    /// Something that other functions depend on has changed.
    changed: bool,
}

pub(crate) fn examine(image: &Image<'_>, code: &Code) -> Result<Report, Error> {
    let mut interpreter = Interpreter {
        image,
        code,
        info: InstructionInfoFactory::new(),
        contexts: BTreeMap::new(),
        arming: BTreeSet::new(),
        probes: BTreeSet::new(),
        aborts: BTreeSet::new(),
        findings: BTreeMap::new(),
        steps: 0,
        changed: true,
    };
    let descriptors: BTreeSet<u64> = code
        .instructions
        .iter()
        .filter(|i| i.mnemonic() == Mnemonic::Lea && i.is_ip_rel_memory_operand())
        .map(Instruction::ip_rel_memory_address)
        .filter(|&at| descriptor::fault(image, at).is_none())
        .collect();
    interpreter.probes =
        descriptors.iter().filter_map(|&at| descriptor::probe(image, at)).collect();
    interpreter.aborts =
        descriptors.iter().filter_map(|&at| descriptor::abort(image, at)).collect();
    let inner = interpreter.inner();
    let entries: Vec<u64> = code.functions.keys().copied().filter(|f| !inner.contains(f)).collect();
    entries.iter().for_each(|&f| {
        let context = if interpreter.probes.contains(&f) { Context::PROBE } else { Context::ENTRY };
        interpreter.contexts.insert(f, context);
    });
    while std::mem::take(&mut interpreter.changed) {
        interpreter.findings.clear();
        interpreter.scan();
        for function in interpreter.contexts.keys().copied().collect::<Vec<_>>() {
            interpreter.function(function)?;
        }
    }
    Ok(interpreter.report(entries.len()))
}

/// Index of a general-purpose register of any width.
fn index(register: Register) -> Option<usize> {
    register.is_gpr().then(|| register.full_register() as usize - Register::RAX as usize)
}

fn leaves(i: &Instruction) -> bool {
    i.is_jmp_far()
        || i.is_jmp_far_indirect()
        || i.is_call_far()
        || i.is_call_far_indirect()
        || matches!(i.mnemonic(), Mnemonic::Retf)
}

fn is_system(i: &Instruction) -> bool {
    use Mnemonic::*;
    let kernel = matches!(
        i.mnemonic(),
        Syscall
            | Sysenter
            | Sysret
            | Sysexit
            | Int
            | Into
            | Iret
            | Iretd
            | Iretq
            | Vmcall
            | Vmmcall
            | Hlt
    );
    let thread = matches!(
        i.mnemonic(),
        Wrfsbase | Wrgsbase | Wrpkru | Xbegin | Xrstor | Xrstor64 | Uiret | Senduipi
    );
    kernel || thread || i.is_privileged() || leaves(i)
}

/// Where an instruction goes on.
enum Next {
    Nowhere,
    To(Vec<(usize, State)>),
}

impl Interpreter<'_> {
    fn find(&mut self, i: &Instruction, rule: Rule, detail: impl Into<String>) {
        self.findings.entry((i.ip(), rule)).or_insert_with(|| detail.into());
    }

    /// Functions that others in the section call or jump to.
    fn inner(&self) -> BTreeSet<u64> {
        let mut inner = self.code.called.clone();
        for i in &self.code.instructions {
            let begins_another = |target: &u64| {
                self.code.functions.contains_key(target) && self.code.function(i.ip()).0 != *target
            };
            inner.extend(code::target(i).filter(begins_another));
        }
        inner
    }

    /// What can be said of each instruction by itself.
    fn scan(&mut self) {
        let code = self.code;
        if !self.image.executable {
            self.find(&code.instructions[0], Rule::Undecodable, "the section is not executable");
        }
        for (i, padding) in code.instructions.iter().zip(code.padding()) {
            if padding {
                continue;
            }
            if i.is_invalid() {
                self.find(i, Rule::Undecodable, "bytes that are no valid instruction");
            } else if is_system(i) {
                self.find(i, Rule::System, "no grace period may wait for what happens there");
            } else if let Some(target) = code::target(i) {
                let call = i.flow_control() == FlowControl::Call;
                if !call && self.aborts.contains(&target) {
                    continue;
                }
                if !self.image.contains(target) {
                    let verb = if call { "calls" } else { "jumps to" };
                    let detail = format!(
                        "{verb} {}{}",
                        self.image.name(target),
                        advice(&self.image.name(target))
                    );
                    self.find(i, Rule::Control, detail);
                } else if code.index(target).is_none() {
                    self.find(
                        i,
                        Rule::Control,
                        format!("leads into the middle of an instruction, {target:#x}"),
                    );
                }
            }
        }
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
        if i.is_invalid() || is_system(i) {
            return Next::Nowhere;
        }
        match i.flow_control() {
            FlowControl::Next => {
                self.execute(function, i, &mut state);
                self.go_on(i, at, state)
            }
            FlowControl::Return => {
                self.check_return(i, &state);
                Next::Nowhere
            }
            FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
                self.branch(function, i, state, at)
            }
            FlowControl::Call | FlowControl::IndirectCall => {
                let target = match code::target(i) {
                    None if i.op0_kind() == OpKind::Register => {
                        match index(i.op0_register()).map(|r| state.registers[r]) {
                            Some(Value::Address(target)) => Some(target),
                            _ => None,
                        }
                    }
                    target => target,
                };
                match target {
                    None => self.find(i, Rule::Indirect, self.indirect(i)),
                    Some(target) if self.code.index(target).is_some() => {
                        self.call(target, &state);
                        if self.arming.contains(&target) {
                            state.armed = Armed::Maybe;
                        }
                    }
                    // Direct ones have been found by the scan.
                    Some(target) => {
                        let name = self.image.name(target);
                        self.find(i, Rule::Control, format!("calls {name}{}", advice(&name)));
                    }
                }
                state.after_call();
                self.go_on(i, at, state)
            }
            FlowControl::IndirectBranch => self.indirect_branch(i, state),
            // A trap: the kernel sends the thread to the abort handler before it delivers the signal. (`int` has been found by the scan.)
            FlowControl::Interrupt | FlowControl::Exception => Next::Nowhere,
            FlowControl::XbeginXabortXend => self.go_on(i, at, state),
        }
    }

    fn go_on(&mut self, i: &Instruction, at: usize, state: State) -> Next {
        match self.code.instructions.get(at + 1) {
            Some(next) if next.ip() == i.next_ip() => Next::To(vec![(at + 1, state)]),
            _ => {
                self.find(
                    i,
                    Rule::Control,
                    "runs off the end of the section, or into a function's middle",
                );
                Next::Nowhere
            }
        }
    }

    fn branch(&mut self, function: u64, i: &Instruction, state: State, at: usize) -> Next {
        let mut next = Vec::new();
        let condition = i.condition_code();
        let target = code::target(i);
        if let Some((target, to)) = target.and_then(|t| Some((t, self.code.index(t)?))) {
            let tail_call = self.code.functions.contains_key(&target)
                && target != function
                && state.registers[RSP] == Value::Stack(0)
                && SAVED.iter().all(|&r| state.registers[r] == Value::Entry(r));
            if tail_call {
                self.call(target, &state);
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

    fn indirect(&self, i: &Instruction) -> String {
        if i.is_ip_rel_memory_operand() {
            return match self.image.pointer(i.ip_rel_memory_address()) {
                Some(Fixup::Symbol(name)) => format!("goes to `{name}`{}", advice(&name)),
                Some(Fixup::Here(target)) if self.image.data(target, 1).is_some() => {
                    let name = self.image.name(target);
                    format!("goes to {name}, through a pointer in memory{}", advice(&name))
                }
                _ => "a function pointer in memory: call functions of the section by name".into(),
            };
        }
        "a function pointer, or a table without a bound: call functions of the section by name, and build with -fno-jump-tables".into()
    }

    fn indirect_branch(&mut self, i: &Instruction, state: State) -> Next {
        let value = match i.op0_kind() {
            OpKind::Register => {
                index(i.op0_register()).map_or(Value::Unknown, |r| state.registers[r])
            }
            OpKind::Memory => self.table_entry(i, &state, Kind::Address),
            _ => Value::Unknown,
        };
        let Value::Target { table, kind, last } = value else {
            self.find(i, Rule::Indirect, self.indirect(i));
            return Next::Nowhere;
        };
        match table::targets(self.image, self.code, table, kind, last) {
            Ok(targets) => Next::To(targets.into_iter().map(|t| (t, state.clone())).collect()),
            Err(why) => {
                self.find(i, Rule::Indirect, why);
                Next::Nowhere
            }
        }
    }

    /// Notes what a call passes.
    fn call(&mut self, target: u64, state: &State) {
        let context = Context {
            arguments: ARGUMENTS.map(|r| state.registers[r].passed()),
            armed: state.armed,
        };
        let joined = self.contexts.get(&target).map_or(context, |known| known.join(context));
        if self.contexts.insert(target, joined) != Some(joined) {
            self.changed = true;
        }
    }

    fn check_return(&mut self, i: &Instruction, state: &State) {
        if state.registers[RSP] != Value::Stack(0) || i.op_count() != 0 {
            self.find(
                i,
                Rule::Return,
                "the stack pointer cannot be shown to be where it was at entry",
            );
        } else if let Some(&r) = SAVED.iter().find(|&&r| state.registers[r] != Value::Entry(r)) {
            let name = [
                "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11",
                "r12", "r13", "r14", "r15",
            ][r];
            self.find(
                i,
                Rule::Return,
                format!("{name} cannot be shown to hold what it held at entry"),
            );
        }
    }

    /// Where the memory operand is.
    fn address(&self, i: &Instruction, state: &State) -> Value {
        if i.is_ip_rel_memory_operand() {
            return Value::Address(i.ip_rel_memory_address());
        }
        place(
            state,
            i.memory_base(),
            i.memory_index(),
            i.memory_index_scale(),
            i.memory_displacement64(),
        )
    }

    /// What loading the memory operand gives if it is an element of a jump table.
    fn table_entry(&self, i: &Instruction, state: &State, kind: Kind) -> Value {
        let base = if i.memory_base() == Register::None {
            Value::Address(i.memory_displacement64())
        } else {
            index(i.memory_base()).map_or(Value::Unknown, |r| {
                state.registers[r].plus(i.memory_displacement64() as i64)
            })
        };
        let bound = index(i.memory_index()).map(|r| state.registers[r]);
        match (base, bound, kind, i.memory_index_scale()) {
            (Value::Address(table), Some(Value::AtMost(last)), Kind::Distance, 4) => {
                Value::Distance { table, last }
            }
            (Value::Address(table), Some(Value::AtMost(last)), Kind::Address, 8) => {
                Value::Target { table, kind, last }
            }
            _ => Value::Unknown,
        }
    }

    /// An instruction that goes on with the next one.
    fn execute(&mut self, function: u64, i: &Instruction, state: &mut State) {
        use Mnemonic::*;
        let result = self.result(i, state);
        match i.mnemonic() {
            Push | Pop | Leave => stack_operation(i, state, result),
            _ => self.memory(function, i, state, result),
        }
        if matches!(i.mnemonic(), Push | Pop) && i.op0_kind() == OpKind::Memory {
            self.memory(function, i, state, Value::Unknown);
        }
        let written: Vec<Register> = self
            .info
            .info(i)
            .used_registers()
            .iter()
            .filter(|u| {
                !matches!(
                    u.access(),
                    OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess | OpAccess::None
                )
            })
            .map(|u| u.register())
            .collect();
        let stack = matches!(i.mnemonic(), Push | Pop | Leave);
        for register in written {
            let Some(r) = index(register) else { continue };
            // These have set their registers already.
            if stack && (r == RSP || i.mnemonic() != Pop || i.op0_register() == register) {
                continue;
            }
            let destination =
                i.op0_kind() == OpKind::Register && index(i.op0_register()) == Some(r);
            state.registers[r] = match (destination, result) {
                (true, Value::Unknown) if i.op0_register().size() == 4 => {
                    Value::AtMost(u32::MAX.into())
                }
                (true, result) => result,
                _ => Value::Unknown,
            };
            if state.compared.is_some_and(|(c, ..)| c == r) {
                state.compared = None;
            }
        }
        if i.mnemonic() == Cmp {
            state.compared = compared(i);
        } else if i.rflags_modified() != 0 {
            state.compared = None;
        }
    }

    /// What the instruction puts into its first operand.
    fn result(&self, i: &Instruction, state: &State) -> Value {
        use Mnemonic::*;
        let register = |n: u32| {
            (i.op_kind(n) == OpKind::Register)
                .then(|| i.op_register(n))
                .filter(|r| r.is_gpr())
                .map(|r| (index(r).unwrap_or(0), r.size()))
        };
        let immediate = |n: u32| i.try_immediate(n).ok();
        let whole = i.op0_kind() != OpKind::Register || i.op0_register().size() == 8;
        let value = |n: u32| match (register(n), immediate(n)) {
            (Some((r, 8)), _) => state.registers[r],
            (Some((r, 4)), _) => state.registers[r].low(),
            (_, Some(v)) => Value::Constant(v),
            _ => Value::Unknown,
        };
        match i.mnemonic() {
            Mov if i.op1_kind() == OpKind::Memory => match self.address(i, state) {
                _ if i.memory_size().size() != 8 || i.has_segment_prefix() => Value::Unknown,
                Value::Stack(at) => state.load(at),
                // A pointer that the dynamic linker fills in: enough to name what a call leads to. One that leads inside could be changed.
                Value::Address(at) if i.is_ip_rel_memory_operand() => {
                    match self.image.pointer(at) {
                        Some(Fixup::Here(to)) if self.image.data(to, 1).is_some() => {
                            Value::Address(to)
                        }
                        _ => Value::Unknown,
                    }
                }
                _ => self.table_entry(i, state, Kind::Address),
            },
            Mov if i.op0_kind() == OpKind::Register && i.op0_register().size() < 4 => {
                Value::Unknown
            }
            Mov => value(1),
            Push => value(0),
            Lea if whole => self.address(i, state),
            Add if whole => value(0).add(value(1)),
            Sub if whole => match (register(0), register(1), immediate(1)) {
                (Some((a, _)), Some((b, _)), _) if a == b => Value::Constant(0),
                (_, _, Some(n)) => {
                    (n as i64).checked_neg().map_or(Value::Unknown, |n| value(0).plus(n))
                }
                _ => value(0).somewhere(),
            },
            Inc | Dec if whole => value(0).plus(if i.mnemonic() == Inc { 1 } else { -1 }),
            Xor if register(0).is_some()
                && register(0) == register(1)
                && register(0).is_some_and(|(_, size)| size >= 4) =>
            {
                Value::Constant(0)
            }
            And => match (value(0).somewhere(), immediate(1)) {
                (place @ (Value::OnStack | Value::Result | Value::First), _) if whole => place,
                (_, Some(mask))
                    if register(0).is_some_and(|(_, size)| size >= 4)
                        && mask <= i32::MAX as u64 =>
                {
                    Value::AtMost(mask)
                }
                _ => Value::Unknown,
            },
            Movzx => match i.op1_kind() {
                OpKind::Register => {
                    Value::AtMost(u64::MAX >> (64 - 8 * i.op1_register().size().min(4)))
                }
                _ => Value::AtMost(u64::MAX >> (64 - 8 * i.memory_size().size().clamp(1, 4))),
            },
            Movsxd if whole && i.op1_kind() == OpKind::Memory => {
                self.table_entry(i, state, Kind::Distance)
            }
            _ if i.condition_code() != ConditionCode::None
                && whole
                && register(0).is_some()
                && register(1).is_some() =>
            {
                value(0).join(value(1))
            }
            _ => Value::Unknown,
        }
    }

    /// Checks what the instruction reads and writes, and remembers what it writes to the frame.
    fn memory(&mut self, function: u64, i: &Instruction, state: &mut State, value: Value) {
        let uses: Vec<_> = self.info.info(i).used_memory().to_vec();
        for used in uses {
            let access = used.access();
            let reads = matches!(
                access,
                OpAccess::Read | OpAccess::ReadWrite | OpAccess::ReadCondWrite | OpAccess::CondRead
            );
            let writes = matches!(
                access,
                OpAccess::Write
                    | OpAccess::CondWrite
                    | OpAccess::ReadWrite
                    | OpAccess::ReadCondWrite
            );
            let local = matches!(used.segment(), Register::FS | Register::GS);
            let implicit = matches!(i.mnemonic(), Mnemonic::Push | Mnemonic::Pop)
                && used.base() == Register::RSP
                && i.memory_base() != Register::RSP;
            if implicit {
                continue;
            }
            let mut place = if i.is_ip_rel_memory_operand() {
                Value::Address(i.ip_rel_memory_address())
            } else {
                place(state, used.base(), used.index(), used.scale(), used.displacement())
            };
            if i.has_rep_prefix() || i.has_repne_prefix() {
                place = match place {
                    Value::Stack(_) => Value::OnStack,
                    other => other,
                };
            }
            if reads && !local {
                self.check_read(i, state, place);
            }
            if writes {
                if local {
                    self.find(i, Rule::Store, "it is thread-local storage");
                    continue;
                }
                self.check_write(
                    function,
                    i,
                    state,
                    place,
                    value,
                    used.memory_size().size() as i64,
                );
            }
        }
    }

    fn check_read(&mut self, i: &Instruction, state: &State, place: Value) {
        let own = match place {
            Value::Stack(_) | Value::OnStack | Value::Result | Value::Cs => true,
            Value::Address(at) => self.image.constant(at, 1).is_some(),
            _ => false,
        };
        if !own && state.armed != Armed::Yes {
            let detail = match state.armed {
                Armed::Disarmed => "it has been disarmed: a grace period may have ended meanwhile",
                Armed::Maybe => "on some path to this instruction it is not armed",
                _ => {
                    "a function that is entered from outside must arm first (is it called by reprieve_lookup or reprieve_protect?)"
                }
            };
            self.find(i, Rule::Arming, detail);
        }
    }

    fn check_write(
        &mut self,
        function: u64,
        i: &Instruction,
        state: &mut State,
        place: Value,
        value: Value,
        size: i64,
    ) {
        // Only a plain move of a whole word has a value.
        let value = if i.mnemonic() == Mnemonic::Mov && size == 8 { value } else { Value::Unknown };
        match place {
            Value::Stack(at) if at < 0 && at.saturating_add(size.max(1)) <= 0 => {
                state.store(at, size.max(1), value)
            }
            Value::Stack(_) => {
                self.find(i, Rule::Store, "it is the return address or a caller's frame")
            }
            Value::OnStack => state.forget_slots(),
            Value::Result => {}
            Value::Cs => self.arm(function, i, state, value),
            Value::First if self.probes.contains(&function) => {}
            Value::First => {
                self.find(i, Rule::Store, "it is the lookup itself, the first argument")
            }
            Value::Address(at) => {
                self.find(i, Rule::Store, format!("it is {}, a global", self.image.name(at)))
            }
            _ => self.find(i, Rule::Store, "the pointer comes from memory or from arithmetic"),
        }
    }

    fn arm(&mut self, function: u64, i: &Instruction, state: &mut State, value: Value) {
        if self.arming.insert(function) {
            self.changed = true;
        }
        state.armed = match value {
            Value::Constant(0) => Armed::Disarmed,
            Value::Address(at) => {
                if let Some(fault) = descriptor::fault(self.image, at) {
                    self.find(i, Rule::Descriptor, format!("{}: {fault}", self.image.name(at)));
                }
                Armed::Yes
            }
            _ => {
                self.find(
                    i,
                    Rule::Descriptor,
                    "what it stores is neither the address of a descriptor nor 0",
                );
                Armed::Maybe
            }
        };
    }

    fn report(self, entries: usize) -> Report {
        let mut formatter = IntelFormatter::new();
        let findings = self.findings.iter().filter_map(|((address, rule), detail)| {
            let i = &self.code.instructions[self.code.index(*address)?];
            let mut instruction = String::new();
            if !i.is_invalid() {
                formatter.format(i, &mut instruction);
            }
            let (start, name) = self.code.function(*address);
            Some(Finding {
                rule: *rule,
                function: name.to_owned(),
                offset: address - start,
                address: *address,
                instruction,
                detail: detail.clone(),
            })
        });
        Report {
            bytes: self.image.bytes.len() as u64,
            functions: self.code.functions.len(),
            entries,
            instructions: self.code.instructions.len(),
            findings: findings.collect(),
        }
    }
}

fn place(state: &State, base: Register, indexed: Register, scale: u32, displacement: u64) -> Value {
    let value = |register| match index(register) {
        Some(r) => state.registers[r],
        None => Value::Unknown,
    };
    if base == Register::None && indexed == Register::None {
        return Value::Address(displacement);
    }
    if base == Register::None {
        // An array at a fixed address.
        return if scale == 1 {
            value(indexed).plus(displacement as i64)
        } else {
            Value::Address(displacement)
        };
    }
    let start = value(base).plus(displacement as i64);
    match (indexed, start) {
        (Register::None, _) => start,
        (_, Value::Address(_)) => start,
        _ if scale == 1 => value(base).add(value(indexed)).plus(displacement as i64),
        _ => start.somewhere(),
    }
}

fn stack_operation(i: &Instruction, state: &mut State, result: Value) {
    let moved = |state: &mut State, by: i64| state.registers[RSP] = state.registers[RSP].plus(by);
    match i.mnemonic() {
        Mnemonic::Push => {
            moved(state, -8);
            if let Value::Stack(at) = state.registers[RSP] {
                state.store(at, 8, result);
            }
        }
        Mnemonic::Pop => {
            let value = match state.registers[RSP] {
                Value::Stack(at) => state.load(at),
                _ => Value::Unknown,
            };
            moved(state, 8);
            if let Some(r) =
                (i.op0_kind() == OpKind::Register).then(|| index(i.op0_register())).flatten()
            {
                state.registers[r] = value;
            }
        }
        _ => {
            state.registers[RSP] = state.registers[RBP];
            state.registers[RBP] = match state.registers[RSP] {
                Value::Stack(at) => state.load(at),
                _ => Value::Unknown,
            };
            moved(state, 8);
        }
    }
}

/// The comparison that the flags stand for, if it is one of a register with a number.
fn compared(i: &Instruction) -> Option<(usize, u64, bool)> {
    let register = (i.op0_kind() == OpKind::Register).then(|| i.op0_register())?;
    let number = i.try_immediate(1).ok()?;
    let wide = register.size() == 8;
    (wide || register.size() == 4).then_some(())?;
    Some((index(register)?, if wide { number } else { number & u64::from(u32::MAX) }, wide))
}

/// The state on one side of a conditional branch.
fn refined(state: &State, condition: ConditionCode, taken: bool) -> State {
    let mut state = state.clone();
    if let Some((r, number, wide)) = state.compared {
        let bound = match (condition, taken) {
            (ConditionCode::a, false) | (ConditionCode::be, true) => Some(number),
            (ConditionCode::ae, false) | (ConditionCode::b, true) => number.checked_sub(1),
            _ => None,
        };
        if let Some(bound) = bound {
            state.registers[r] = match state.registers[r] {
                Value::AtMost(most) if wide || most <= u32::MAX.into() => {
                    Value::AtMost(bound.min(most))
                }
                Value::Unknown if wide => Value::AtMost(bound),
                Value::Unknown => Value::LowAtMost(bound),
                other => other,
            };
        }
    }
    state
}

/// What to do about calls that compilers make.
fn advice(name: &str) -> &'static str {
    if ["memcpy", "memmove", "memset", "memcmp", "bcmp", "strlen"].iter().any(|f| name.contains(f))
    {
        ": copy less than 128 bytes at a time, or word by word"
    } else if name.contains("panic") || name.contains("unwrap_failed") {
        ": a check that panics; use unchecked access, or arithmetic that cannot overflow"
    } else if name.contains("stack_chk") {
        ": the stack protector; build these functions without it"
    } else if name.contains("asan") || name.contains("ubsan") || name.contains("tsan") {
        ": a sanitizer; exempt these functions from it"
    } else {
        ""
    }
}
