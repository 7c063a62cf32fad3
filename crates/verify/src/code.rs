// SPDX-License-Identifier: MIT OR Apache-2.0
//! The instructions of the section, and where its functions begin.
//!
//! Everything in the section is executable code, so it is decoded from its first byte to its last,
//! also where no branch leads. A function begins at a symbol or at the target of a call. Padding
//! between functions is no function.

use crate::error::Error;
use crate::image::Image;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) struct Code {
    pub(crate) instructions: Vec<Instruction>,
    /// Index of the instruction at an address.
    at: BTreeMap<u64, usize>,
    /// Addresses of functions.
    pub(crate) functions: BTreeSet<u64>,
    /// Functions that a call inside the section leads to.
    pub(crate) called: BTreeSet<u64>,
}

/// Whether compilers, assemblers and linkers use it as padding between functions.
fn is_padding(i: &Instruction) -> bool {
    matches!(i.mnemonic(), Mnemonic::Nop | Mnemonic::Int3) || i.is_invalid() || is_zeros(i)
}

/// Two zero bytes.
fn is_zeros(i: &Instruction) -> bool {
    i.mnemonic() == Mnemonic::Add
        && i.len() == 2
        && i.op1_register() == iced_x86::Register::AL
        && i.memory_base() == iced_x86::Register::RAX
}

/// Whether the program does not go on after it.
pub(crate) fn ends(i: &Instruction) -> bool {
    matches!(
        i.flow_control(),
        FlowControl::UnconditionalBranch
            | FlowControl::IndirectBranch
            | FlowControl::Return
            | FlowControl::Exception
    ) || i.mnemonic() == Mnemonic::Int3
}

/// Target of a direct branch or call.
pub(crate) fn target(i: &Instruction) -> Option<u64> {
    matches!(
        i.op0_kind(),
        iced_x86::OpKind::NearBranch16
            | iced_x86::OpKind::NearBranch32
            | iced_x86::OpKind::NearBranch64
    )
    .then(|| i.near_branch_target())
}

impl Code {
    pub(crate) fn decode(image: &Image<'_>) -> Result<Code, Error> {
        let mut instructions = Vec::new();
        let mut start = image.start;
        // Decoding starts afresh at each function that is known, so that padding of odd bytes does
        // not swallow its beginning.
        let known: BTreeSet<u64> = image.functions.keys().copied().collect();
        let ends_at = known
            .iter()
            .copied()
            .filter(|&a| a > image.start)
            .chain([image.start + image.bytes.len() as u64]);
        for end in ends_at {
            let bytes = &image.bytes[(start - image.start) as usize..(end - image.start) as usize];
            instructions.extend(Decoder::with_ip(64, bytes, start, DecoderOptions::NONE).iter());
            start = end;
        }
        let at = instructions.iter().enumerate().map(|(index, i)| (i.ip(), index)).collect();
        let mut code = Code { instructions, at, functions: known, called: BTreeSet::new() };
        code.find_functions(image);
        Ok(code)
    }

    fn find_functions(&mut self, image: &Image<'_>) {
        for i in &self.instructions {
            let Some(target) = target(i).filter(|&t| image.contains(t)) else { continue };
            if i.flow_control() == FlowControl::Call {
                self.called.insert(target);
                self.functions.insert(target);
            }
        }
    }

    /// Index of the instruction that begins at an address.
    pub(crate) fn index(&self, address: u64) -> Option<usize> {
        self.at.get(&address).copied()
    }

    /// The function that an address belongs to; none before the first.
    pub(crate) fn function(&self, address: u64) -> Option<u64> {
        self.functions.range(..=address).next_back().copied()
    }

    /// Whether each instruction is padding between functions: behind an end or at the section's
    /// beginning, up to the next function.
    pub(crate) fn padding(&self) -> Vec<bool> {
        let mut after_end = true;
        self.instructions
            .iter()
            .map(|i| {
                if self.functions.contains(&i.ip()) {
                    after_end = false;
                }
                let padding = after_end && is_padding(i);
                if !padding {
                    after_end = ends(i);
                }
                padding
            })
            .collect()
    }
}
