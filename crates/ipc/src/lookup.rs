// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lookups alone, for the benchmark that compares them with lookups under locks: what each call on
//! a set does before it takes the set's lock.

use crate::error::Result;
use crate::namespace::Namespace;
use crate::peers::Local;
use crate::sem::Set;
use crate::space::layout::Kind;

fn found(local: &Local, id: i32) -> bool {
    local.find::<Set>(id).is_ok()
}

#[doc(hidden)]
impl Namespace {
    /// Whether there is a set of that id: as every call looks, in a read-side section.
    #[inline]
    pub fn finds_set(&self, id: i32) -> Result<bool> {
        let (_call, local) = self.begin()?;
        let _section = local.enter();
        Ok(found(local, id))
    }

    /// The same under the lock that all ids of sets have in common.
    #[inline]
    pub fn finds_set_under_lock(&self, id: i32) -> Result<bool> {
        let (_call, local) = self.begin()?;
        let _held = local.lock(&local.ids(Kind::Sem).lock)?;
        Ok(found(local, id))
    }

    /// The same under the caller's own protection.
    ///
    /// # Safety
    /// Nobody removes a set meanwhile.
    #[inline]
    pub unsafe fn finds_set_unprotected(&self, id: i32) -> Result<bool> {
        let (_call, local) = self.begin()?;
        Ok(found(local, id))
    }
}
