// SPDX-License-Identifier: MIT OR Apache-2.0
//! An address as text that can be looked up later: image and offset, as `addr2line -e IMAGE OFFSET`
//! takes them, and the nearest exported symbol. Programs that want lines at once symbolize
//! [`Laggard::stack`](super::Laggard::stack) themselves.

use std::ffi::CStr;
use std::fmt::{Display, Formatter, Result};

pub(crate) struct Symbol(pub(crate) usize);

impl Display for Symbol {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        // SAFETY: dladdr fills `info` in when it returns nonzero.
        let info = unsafe {
            let mut info: libc::Dl_info = std::mem::zeroed();
            let found = libc::dladdr(std::ptr::without_provenance(self.0), &mut info);
            (found != 0 && !info.dli_fname.is_null()).then_some(info)
        };
        let Some(info) = info else {
            return write!(f, "{:#x}", self.0);
        };
        // SAFETY: strings of the loader, which live as long as their image; at worst another thread
        // unloads it now, whose code a reader runs.
        let (image, symbol) = unsafe {
            let symbol = (!info.dli_sname.is_null()).then(|| CStr::from_ptr(info.dli_sname));
            (CStr::from_ptr(info.dli_fname), symbol)
        };
        write!(f, "{}+{:#x}", image.to_string_lossy(), self.0.wrapping_sub(info.dli_fbase.addr()))?;
        match symbol {
            Some(symbol) => {
                let offset = self.0.wrapping_sub(info.dli_saddr.addr());
                write!(f, " ({}+{offset:#x})", symbol.to_string_lossy())
            }
            None => Ok(()),
        }
    }
}
