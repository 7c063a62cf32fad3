// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arguments that the lab's commands share.

use crate::dilation::Dilation;
use crate::host::{Bed, MOST_AGAIN, Mode};
use crate::policy::parse_time;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use std::time::Duration;

/// The guests' kernel, unless the user names another.
pub const DEFAULT_KERNEL: &str = "deb:6.12";

#[derive(Args)]
pub struct HostArgs {
    /// Where the VMs run: this machine under KVM or TCG, or a lab host (a VM that has KVM)
    #[arg(long, value_parser = one_of(&Mode::ALL, Mode::name), default_value = "auto")]
    host: Mode,
    /// CPUs of the lab host, 2 to 64, on a machine of any size [default: as many as this machine]
    #[arg(long, value_name = "N")]
    host_cpus: Option<u32>,
    /// Make the lab host's clocks N times slower: under TCG, shares of a time slice come nearer to
    /// those of hardware [default: for a lab host under TCG 20, or 20 times its CPUs by this
    /// machine's if that is more; else 1]
    #[arg(long, value_name = "N", value_parser = dilation)]
    dilate: Option<Dilation>,
    /// The slice of the lab host's stock scheduler [default: 2.8ms, as with 8 CPUs and more]
    #[arg(long, value_name = "TIME", value_parser = slice)]
    base_slice: Option<Duration>,
    /// How often at most a phase is measured again that other work disturbed
    #[arg(long, value_name = "N", default_value_t = MOST_AGAIN,
        value_parser = clap::value_parser!(u32).range(..=i64::from(MOST_AGAIN)))]
    again: u32,
    /// Kernel of the lab host: deb:VERSION or a path
    #[arg(long)]
    host_kernel: Option<String>,
}

impl HostArgs {
    pub fn bed(&self) -> Bed {
        Bed {
            mode: self.host,
            cpus: self.host_cpus,
            dilate: self.dilate,
            base_slice: self.base_slice,
            again: self.again,
            kernel: self.host_kernel.clone(),
        }
    }
}

fn slice(text: &str) -> Result<Duration, &'static str> {
    parse_time(text).ok_or("give whole microseconds, as in 1ms or 0.5ms")
}

fn dilation(text: &str) -> Result<Dilation, String> {
    let n = text
        .parse()
        .map_err(|_| format!("give a whole number from 1 (not at all) to {}", Dilation::MAX))?;
    Dilation::new(n).map_err(|error| error.to_string())
}

/// Takes the `name`s of `all` values.
pub fn one_of<T>(all: &'static [T], name: fn(T) -> &'static str) -> impl TypedValueParser<Value = T>
where
    T: Copy + Send + Sync + 'static,
{
    PossibleValuesParser::new(all.iter().map(move |&value| name(value))).try_map(move |text| {
        all.iter().copied().find(|&value| name(value) == text).ok_or("not one of the values")
    })
}
