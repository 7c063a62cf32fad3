// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arguments that the lab's commands share.

use crate::dilation::Dilation;
use crate::host::Mode;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

/// The guests' kernel, unless the user names another.
pub const DEFAULT_KERNEL: &str = "deb:6.12";

#[derive(Args)]
pub struct HostArgs {
    /// Where the VMs run: this machine under KVM or TCG, or a lab host (a VM that has KVM)
    #[arg(long, value_parser = one_of(&Mode::ALL, Mode::name), default_value = "auto")]
    pub host: Mode,
    /// Make the lab host's clocks N times slower: under TCG, shares of a time slice come
    /// nearer to those of hardware [default: 10 for a lab host under TCG, else 1]
    #[arg(long, value_name = "N", value_parser = dilation)]
    pub dilate: Option<Dilation>,
    /// Kernel of the lab host: deb:VERSION or a path
    #[arg(long)]
    pub host_kernel: Option<String>,
}

fn dilation(text: &str) -> Result<Dilation, String> {
    let n = text.parse().map_err(|_| "give a whole number from 1 (not at all) to 100")?;
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
