// SPDX-License-Identifier: MIT OR Apache-2.0
//! The transfer functions: what is known after an instruction, from what is known before it.

use crate::image::{Fixup, Image};
use crate::table::Kind;
use crate::value::{RBP, RSP, State, Value};
use iced_x86::{ConditionCode, Instruction, Mnemonic, OpKind, Register};

/// Index of a general-purpose register of any width.
pub(super) fn index(register: Register) -> Option<usize> {
    register.is_gpr().then(|| register.full_register() as usize - Register::RAX as usize)
}

/// Whether an address that is computed from it has 32 bits.
fn is_short(register: Register) -> bool {
    register.size() == 4
}

/// The address of the memory operand.
pub(super) fn address(i: &Instruction, state: &State) -> Value {
    if i.memory_base() == Register::RIP {
        return Value::Address(i.ip_rel_memory_address());
    }
    place(
        state,
        i.memory_base(),
        i.memory_index(),
        i.memory_index_scale(),
        i.memory_displacement64(),
    )
    .0
}

/// The value of the memory operand if it is an element of a jump table.
pub(super) fn table_entry(i: &Instruction, state: &State, kind: Kind) -> Value {
    // Not `ds`: as a prefix of a jump it is `notrack`.
    let elsewhere = matches!(i.memory_segment(), Register::FS | Register::GS);
    if elsewhere || is_short(i.memory_base()) || is_short(i.memory_index()) {
        return Value::Unknown;
    }
    let base = if i.memory_base() == Register::None {
        Value::Address(i.memory_displacement64())
    } else {
        index(i.memory_base())
            .map_or(Value::Unknown, |r| state.registers[r].plus(i.memory_displacement64() as i64))
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

/// The value that a move from memory loads.
fn loaded(image: &Image<'_>, i: &Instruction, state: &State) -> Value {
    match address(i, state) {
        _ if i.memory_size().size() != 8 || i.has_segment_prefix() => Value::Unknown,
        Value::Stack(at) => state.load(at),
        // A constant, or a pointer that the dynamic linker fills in. One into the section is not
        // trusted: no compiler stores one.
        Value::Address(at) if i.is_ip_rel_memory_operand() => match image.pointer(at) {
            Some(Fixup::Here(to)) if image.contains(to) || image.data(to, 1).is_none() => {
                Value::Unknown
            }
            Some(Fixup::Here(to)) if image.constant(at, 8).is_some() => Value::Address(to),
            Some(Fixup::Here(to)) => Value::Pointer(to),
            _ => Value::Unknown,
        },
        _ => table_entry(i, state, Kind::Address),
    }
}

/// The value that the instruction puts into its first operand.
pub(super) fn result(image: &Image<'_>, i: &Instruction, state: &State) -> Value {
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
        Mov if i.op1_kind() == OpKind::Memory => loaded(image, i, state),
        Mov if i.op0_kind() == OpKind::Register && i.op0_register().size() < 4 => Value::Unknown,
        Mov => value(1),
        Push => value(0),
        Lea if whole => match address(i, state) {
            // Somewhere in an array, no longer at its beginning.
            Value::Address(_) if i.memory_index() != Register::None => Value::Unknown,
            place => place,
        },
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
                if register(0).is_some_and(|(_, size)| size >= 4) && mask <= i32::MAX as u64 =>
            {
                Value::AtMost(mask)
            }
            _ => Value::Unknown,
        },
        // A load of 16 bits or fewer leaves the others.
        Movzx if i.op0_register().size() >= 4 => match i.op1_kind() {
            OpKind::Register => {
                Value::AtMost(u64::MAX >> (64 - 8 * i.op1_register().size().min(4)))
            }
            _ => Value::AtMost(u64::MAX >> (64 - 8 * i.memory_size().size().clamp(1, 4))),
        },
        Movsxd if whole && i.op1_kind() == OpKind::Memory => table_entry(i, state, Kind::Distance),
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

/// Puts what the instruction writes to registers into the state: `result` into the destination.
pub(super) fn write_registers(
    i: &Instruction,
    written: impl Iterator<Item = Register>,
    result: Value,
    state: &mut State,
) {
    use Mnemonic::*;
    let stack = matches!(i.mnemonic(), Push | Pop | Leave);
    for register in written {
        let Some(r) = index(register) else { continue };
        // `stack_operation` has set the registers of these.
        if stack && (r == RSP || i.mnemonic() != Pop || i.op0_register() == register) {
            continue;
        }
        let destination = i.op0_kind() == OpKind::Register && index(i.op0_register()) == Some(r);
        let value = match (destination, result) {
            (true, Value::Unknown) if i.op0_register().size() == 4 => {
                Value::AtMost(u32::MAX.into())
            }
            (true, result) => result,
            _ => Value::Unknown,
        };
        state.set(r, value);
    }
    if i.mnemonic() == Cmp {
        state.compared = compared(i);
    } else if i.rflags_modified() != 0 {
        state.compared = None;
    }
}

/// Where a memory operand is, and where the array begins of which it is an element: where it would
/// be if its index were 0.
pub(super) fn place(
    state: &State,
    base: Register,
    indexed: Register,
    scale: u32,
    displacement: u64,
) -> (Value, Value) {
    let value = |register| match index(register) {
        Some(r) => state.registers[r],
        None => Value::Unknown,
    };
    let whole = |place| (place, place);
    if is_short(base) || is_short(indexed) {
        return whole(Value::Unknown);
    }
    if base == Register::None && indexed == Register::None {
        return whole(Value::Address(displacement));
    }
    let moved = |register| value(register).plus(displacement as i64);
    if base == Register::None {
        // An array at a fixed address.
        return whole(if scale == 1 { moved(indexed) } else { Value::Address(displacement) });
    }
    let start = moved(base);
    if indexed == Register::None || matches!(start, Value::Address(_)) {
        return whole(start);
    }
    if scale != 1 {
        return (start.somewhere(), start);
    }
    // Either register may be the index. The other one is moved first: that may lead from below the
    // return address to it.
    let is_place =
        |value| matches!(value, Value::Stack(_) | Value::OnStack | Value::First | Value::Result);
    if is_place(value(base)) || !is_place(value(indexed)) {
        (start.add(value(indexed)), start)
    } else {
        (moved(indexed).add(value(base)), moved(indexed))
    }
}

/// Moves the stack pointer by a word. The rules refuse operands of another size.
pub(super) fn stack_operation(i: &Instruction, state: &mut State, result: Value) {
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
                state.set(r, value);
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
pub(super) fn refined(state: &State, condition: ConditionCode, taken: bool) -> State {
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
