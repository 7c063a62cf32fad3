// SPDX-License-Identifier: MIT OR Apache-2.0
//! Knowledge about registers and stack words at a point of a function.
//!
//! The values form a flat lattice: where two paths meet, values that differ become
//! [`Value::Unknown`] (two places on the stack below the return address: [`Value::OnStack`]), so
//! every chain is short and the interpretation ends.

use crate::table::Kind;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Unknown,
    /// The value that this callee-saved register had at the function's entry.
    Entry(usize),
    /// This distance from the return address of the function.
    Stack(i64),
    /// An unknown place on this thread's stack, below the entry's return address.
    OnStack,
    /// The entry's first argument (the lookup, or its first word), or an address inside of what it
    /// points to.
    First,
    /// An address inside of the result, to which the entry's second argument points.
    Result,
    /// Its third argument: the thread's `rseq_cs` field.
    Cs,
    /// An address of the file.
    Address(u64),
    /// The content of a pointer that the program may change at its start: enough for a message.
    Pointer(u64),
    Constant(u64),
    /// A number from 0 to this.
    AtMost(u64),
    /// The lower 32 bits are a number from 0 to this; the upper ones are not known.
    LowAtMost(u64),
    /// An entry of a table of distances, with an index from 0 to `last`.
    Distance {
        table: u64,
        last: u64,
    },
    /// An address taken from a table.
    Target {
        table: u64,
        kind: Kind,
        last: u64,
    },
}

impl Value {
    /// Whether it is a place on the stack where a store spares the return address.
    fn below_return(self) -> bool {
        self.somewhere() == Value::OnStack
    }

    /// The value on either of two paths.
    pub(crate) fn join(self, other: Value) -> Value {
        if self == other {
            self
        } else if self.below_return() && other.below_return() {
            Value::OnStack
        } else {
            Value::Unknown
        }
    }

    /// This value as an argument, for the function called with this stack pointer: its own return
    /// address and frame lie below that.
    pub(crate) fn passed(self, bottom: Value) -> Value {
        match self {
            Value::Stack(at) if matches!(bottom, Value::Stack(bottom) if at < bottom) => {
                Value::Unknown
            }
            Value::Stack(_) | Value::OnStack => self.somewhere(),
            Value::First | Value::Result | Value::Cs | Value::Address(_) | Value::Constant(_) => {
                self
            }
            _ => Value::Unknown,
        }
    }

    /// Moved by a known distance.
    pub(crate) fn plus(self, distance: i64) -> Value {
        match self {
            Value::Stack(at) => at.checked_add(distance).map_or(Value::Unknown, Value::Stack),
            Value::Address(at) => Value::Address(at.wrapping_add_signed(distance)),
            Value::Constant(n) => Value::Constant(n.wrapping_add_signed(distance)),
            Value::OnStack | Value::First | Value::Result => self,
            _ if distance == 0 => self,
            _ => Value::Unknown,
        }
    }

    /// The sum of two registers.
    pub(crate) fn add(self, other: Value) -> Value {
        match (self, other) {
            (v, Value::Constant(n)) | (Value::Constant(n), v) => v.plus(n as i64),
            (Value::Address(t), Value::Distance { table, last })
            | (Value::Distance { table, last }, Value::Address(t))
                if t == table =>
            {
                Value::Target { table, kind: Kind::Distance, last }
            }
            (v, w) => match v.somewhere() {
                Value::Unknown => w.somewhere(),
                v if w.somewhere() == Value::Unknown => v,
                _ => Value::Unknown,
            },
        }
    }

    /// Moved by an unknown distance. What begins below the return address stays below it.
    pub(crate) fn somewhere(self) -> Value {
        match self {
            Value::Stack(at) if at < 0 => Value::OnStack,
            Value::OnStack => Value::OnStack,
            Value::First | Value::Result => self,
            _ => Value::Unknown,
        }
    }

    /// Its lower 32 bits, extended with zeroes.
    pub(crate) fn low(self) -> Value {
        match self {
            Value::LowAtMost(n) | Value::AtMost(n) if n <= u32::MAX.into() => Value::AtMost(n),
            Value::Constant(n) => Value::Constant(n & u64::from(u32::MAX)),
            _ => Value::Unknown,
        }
    }
}

/// Whether the section is armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Armed {
    No,
    Yes,
    Disarmed,
    /// The value depends on the path.
    Maybe,
}

/// Words of the stack that are remembered per function.
const MOST_SLOTS: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) registers: [Value; 16],
    /// Words of this function's frame, by distance from the return address.
    slots: BTreeMap<i64, Value>,
    pub(crate) armed: Armed,
    /// The register and the number that the flags compare, and whether all 64 bits were compared.
    pub(crate) compared: Option<(usize, u64, bool)>,
}

pub(crate) const RCX: usize = 1;
pub(crate) const RSP: usize = 4;
pub(crate) const RBP: usize = 5;
/// Registers that a function must give back as it found them.
pub(crate) const SAVED: [usize; 6] = [3, RBP, 12, 13, 14, 15];
/// Registers that pass arguments, in order.
pub(crate) const ARGUMENTS: [usize; 6] = [7, 6, 2, 1, 8, 9];

impl State {
    /// At the beginning of a function.
    pub(crate) fn entry(arguments: [Value; 6], armed: Armed) -> State {
        let mut registers = [Value::Unknown; 16];
        SAVED.iter().for_each(|&r| registers[r] = Value::Entry(r));
        ARGUMENTS.iter().zip(arguments).for_each(|(&r, v)| registers[r] = v);
        registers[RSP] = Value::Stack(0);
        State { registers, slots: BTreeMap::new(), armed, compared: None }
    }

    /// A register is written.
    pub(crate) fn set(&mut self, register: usize, value: Value) {
        self.registers[register] = value;
        if self.compared.is_some_and(|(c, ..)| c == register) {
            self.compared = None;
        }
    }

    /// Joins the state of another path to the same instruction. Returns whether that changed
    /// anything.
    pub(crate) fn join(&mut self, other: &State) -> bool {
        let before = (self.registers, self.slots.len(), self.armed, self.compared);
        for (mine, theirs) in self.registers.iter_mut().zip(other.registers) {
            *mine = mine.join(theirs);
        }
        self.slots.retain(|at, value| other.slots.get(at) == Some(value));
        if self.armed != other.armed {
            self.armed = Armed::Maybe;
        }
        if self.compared != other.compared {
            self.compared = None;
        }
        before != (self.registers, self.slots.len(), self.armed, self.compared)
    }

    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn load(&self, at: i64) -> Value {
        self.slots.get(&at).copied().unwrap_or(Value::Unknown)
    }

    /// `size` bytes of the frame are written; a whole word with this value.
    pub(crate) fn store(&mut self, at: i64, size: i64, value: Value) {
        let hit: Vec<i64> = self
            .slots
            .range(at.saturating_sub(7)..at.saturating_add(size))
            .map(|(&k, _)| k)
            .collect();
        hit.iter().for_each(|k| {
            self.slots.remove(k);
        });
        if size == 8 && value != Value::Unknown && self.slots.len() < MOST_SLOTS {
            self.slots.insert(at, value);
        }
    }

    /// An object on the stack is written or handed to others: one that begins at `from`, or at an
    /// unknown place. Programs do not overflow their objects, so saved registers keep their values,
    /// as do the arguments that unoptimized code keeps in a frame below the object.
    pub(crate) fn forget_slots(&mut self, from: Option<i64>) {
        self.slots.retain(|&at, value| match value {
            Value::Entry(_) => from.is_none_or(|from| from < at || from.saturating_sub(at) >= 8),
            Value::First | Value::Result | Value::Cs => {
                from.is_some_and(|from| from.saturating_sub(at) >= 8)
            }
            _ => false,
        });
    }

    /// The state after a call: only the callee-saved registers keep their values.
    pub(crate) fn after_call(&mut self) {
        for argument in ARGUMENTS.map(|r| self.registers[r]) {
            match argument {
                Value::Stack(at) => self.forget_slots(Some(at)),
                Value::OnStack => self.forget_slots(None),
                _ => {}
            }
        }
        if let Value::Stack(bottom) = self.registers[RSP] {
            self.slots.retain(|&at, _| at >= bottom);
        }
        for (index, value) in self.registers.iter_mut().enumerate() {
            if index != RSP && !SAVED.contains(&index) {
                *value = Value::Unknown;
            }
        }
        self.compared = None;
    }
}
