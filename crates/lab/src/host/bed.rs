// SPDX-License-Identifier: MIT OR Apache-2.0
//! The test bed that the user asks for: where the VMs run, and what a lab host is like.

use super::{HostKind, Mode, info};
use crate::dilation::Dilation;
use crate::error::{Error, Result};
use crate::experiments::MAX_VCPUS;
use crate::images::kernels::KernelSpec;
use crate::policy;
use crate::vm::Accel;
use std::time::Duration;

/// The stock scheduler's slice on a real host: Linux takes it from 8 CPUs on.
const BASE_SLICE: Duration = Duration::from_micros(2800);

/// Sizes of a lab host. The smallest: with one CPU, RCU has no other to wait for.
const LEAST_CPUS: u32 = 2;
const MOST_CPUS: u32 = 64;

#[derive(Clone, Debug)]
pub struct Bed {
    pub mode: Mode,
    /// CPUs of a lab host; `None`: as many as this machine has.
    pub cpus: Option<u32>,
    /// How much a lab host's time is dilated; `None`: as suits its size.
    pub dilate: Option<Dilation>,
    /// The slice of a lab host's stock scheduler; `None`: a real host's.
    pub base_slice: Option<Duration>,
    /// How often at most a phase is measured again that other work disturbed.
    pub again: u32,
    /// Kernel of a lab host: `deb:VERSION` or a path. `None`: the newest that is able to.
    pub kernel: Option<String>,
}

impl Bed {
    /// Refuses what the mode cannot have.
    ///
    /// # Errors
    /// [`Error::Usage`] with the reason and what to do.
    pub fn check(&self) -> Result<()> {
        if let Some(n) = self.cpus.filter(|n| !(LEAST_CPUS..=MOST_CPUS).contains(n)) {
            return usage(format!("--host-cpus {n}: give {LEAST_CPUS} to {MOST_CPUS}"));
        }
        if let Some(slice) = self.base_slice.filter(|slice| !policy::SLICE_LENGTHS.contains(slice))
        {
            return usage(format!("--base-slice {slice:?}: give 0.1ms to 100ms"));
        }
        if let Some(kernel) = &self.kernel {
            kernel.parse::<KernelSpec>()?;
        }
        let why = match self.mode {
            Mode::Auto | Mode::Nested => return Ok(()),
            Mode::Kvm => "guests under KVM read this machine's clocks and run on its CPUs",
            Mode::Tcg => "the VMs' host is this machine, which the lab leaves as it is",
        };
        let given = [
            self.cpus.map(|n| format!("--host-cpus {n}")),
            self.dilate.filter(|d| !d.is_none()).map(|d| format!("--dilate {}", d.factor())),
            self.base_slice.map(|slice| format!("--base-slice {slice:?}")),
        ];
        match given.into_iter().flatten().next() {
            Some(given) => usage(format!(
                "--host {} {given}: {why}; use --host nested, or leave {given} out",
                self.mode.name()
            )),
            None => Ok(()),
        }
    }

    /// CPUs of the VMs' host.
    pub fn cpus(&self) -> u32 {
        self.cpus.unwrap_or_else(info::cpus).min(MAX_VCPUS)
    }

    /// Why only a lab host under TCG can be what the user asks for, if so.
    pub(super) fn needs_tcg(&self) -> Option<String> {
        let here = info::cpus();
        let dilate = self.dilate.filter(|d| !d.is_none());
        let more = self.cpus.filter(|&n| n > here);
        dilate
            .map(|d| format!("--dilate {} takes TCG", d.factor()))
            .or_else(|| more.map(|n| format!("--host-cpus {n} on {here} CPUs takes TCG")))
    }

    /// Whether the user asks for what only a lab host has.
    pub(super) fn needs_lab_host(&self) -> bool {
        self.cpus.is_some() || self.base_slice.is_some()
    }

    /// How much the time of a host of `kind` is dilated. Only a lab host under TCG can be, and is
    /// unless the user does not want it.
    pub(super) fn dilation(&self, kind: HostKind) -> Dilation {
        let default = || Dilation::of_lab_host(self.cpus(), info::cpus());
        match kind {
            HostKind::LabHost(Accel::Tcg) => self.dilate.unwrap_or_else(default),
            _ => Dilation::NONE,
        }
    }

    pub(super) fn base_slice(&self) -> Duration {
        self.base_slice.unwrap_or(BASE_SLICE)
    }
}

fn usage(text: String) -> Result<()> {
    Err(Error::Usage(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BED: Bed = Bed {
        mode: Mode::Nested,
        cpus: None,
        dilate: None,
        base_slice: None,
        again: 0,
        kernel: None,
    };

    #[test]
    fn a_bed_that_cannot_be_is_refused() {
        let slice = Some(Duration::from_millis(1));
        let dilate = Some(Dilation::new(10).unwrap());
        for (bed, named) in [
            (Bed { cpus: Some(1), ..BED }, "--host-cpus 1"),
            (Bed { cpus: Some(65), ..BED }, "2 to 64"),
            (Bed { base_slice: Some(Duration::ZERO), ..BED }, "0.1ms to 100ms"),
            (Bed { kernel: Some("deb:new".into()), ..BED }, "deb:new"),
            (Bed { mode: Mode::Tcg, cpus: Some(8), ..BED }, "--host nested"),
            (Bed { mode: Mode::Kvm, dilate, ..BED }, "--dilate 10"),
            (Bed { mode: Mode::Tcg, base_slice: slice, ..BED }, "--base-slice 1ms"),
        ] {
            let error = bed.check().unwrap_err().to_string();
            assert!(error.contains(named), "{bed:?}: {error}");
        }
        for bed in [
            BED,
            Bed { mode: Mode::Auto, cpus: Some(64), base_slice: slice, dilate, ..BED },
            Bed { mode: Mode::Kvm, dilate: Some(Dilation::NONE), ..BED },
        ] {
            bed.check().unwrap();
        }
    }

    #[test]
    fn a_larger_lab_host_is_slower_and_has_a_real_hosts_slice() {
        let here = info::cpus();
        let large = Bed { cpus: Some(4 * here), ..BED };
        let tcg = HostKind::LabHost(Accel::Tcg);
        assert_eq!((large.cpus(), large.dilation(tcg).factor()), (4 * here, 80));
        assert!(large.needs_tcg().is_some() && large.needs_lab_host());
        assert!(large.dilation(HostKind::LabHost(Accel::Kvm)).is_none());
        assert_eq!((BED.cpus(), BED.dilation(tcg).factor()), (here, 20));
        assert!(BED.needs_tcg().is_none() && !BED.needs_lab_host());
        assert_eq!(BED.base_slice(), Duration::from_micros(2800));
    }
}
