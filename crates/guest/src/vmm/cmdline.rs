// SPDX-License-Identifier: MIT OR Apache-2.0
//! The words of a QEMU command line about memory, CPUs and control sockets.
//!
//! Options come as `key=value` lists or as libvirt's JSON; both are parsed. The command line comes
//! from the VMM, not from the guest, but it may be unusual: an option that is not understood keeps
//! QEMU's default.

use serde_json::Value;
use std::path::PathBuf;

/// Chipset, which decides where the hole below 4 GiB is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Machine {
    /// `pc`, `pc-i440fx-*`.
    #[default]
    Pc,
    /// `q35`, `pc-q35-*`.
    Q35,
    Other,
}

/// A `memory-backend-*` object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backend {
    pub id: String,
    /// Bytes.
    pub size: u64,
    pub path: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub name: Option<String>,
    pub machine: Machine,
    /// Bytes.
    pub memory: u64,
    /// `-machine max-ram-below-4g`, bytes.
    pub max_below_4g: Option<u64>,
    /// All backends, by order of mention.
    pub backends: Vec<Backend>,
    /// The ids of those that are the machine's RAM, in the order of their guest-physical addresses;
    /// empty: QEMU allocates it by itself.
    pub memory_devices: Vec<String>,
    /// vCPUs at start.
    pub vcpus: u32,
    /// The kind of object that encrypts the guest's memory.
    pub confidential: Option<String>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            name: None,
            machine: Machine::default(),
            memory: 128 << 20,
            max_below_4g: None,
            backends: Vec::new(),
            memory_devices: Vec::new(),
            vcpus: 1,
            confidential: None,
        }
    }
}

impl Options {
    /// Reads the arguments of a QEMU process.
    pub fn parse(argv: &[String]) -> Options {
        let mut options = Options::default();
        let mut nodes: Vec<(u32, String)> = Vec::new();
        let mut args = argv.iter().skip(1).map(String::as_str);
        while let Some(arg) = args.next() {
            let Some(option) = arg.strip_prefix("--").or(arg.strip_prefix('-')) else { continue };
            if !TAKES_VALUE.contains(&option) {
                continue;
            }
            let Some(value) = args.next() else { break };
            let pairs = Pairs::parse(value);
            match option {
                "name" => options.name = pairs.first_or("guest").filter(|n| !n.is_empty()),
                "machine" | "M" => options.machine(&pairs),
                "m" => {
                    let size = pairs.first_or("size").and_then(|s| size(&s, 20));
                    options.memory = size.unwrap_or(options.memory);
                }
                "smp" => options.vcpus = vcpus(&pairs),
                "object" => {
                    options.backends.extend(backend(&pairs));
                    let kind = pairs.first_or("qom-type");
                    let confidential = kind.filter(|k| ENCRYPTING.contains(&k.as_str()));
                    options.confidential = confidential.or(options.confidential);
                }
                "numa" => nodes.extend(pairs.get("memdev").map(|dev| {
                    let id = pairs.get("nodeid").and_then(|n| n.parse().ok());
                    (id.unwrap_or(nodes.len() as u32), dev)
                })),
                _ => {}
            }
        }
        if !nodes.is_empty() {
            nodes.sort_by_key(|(id, _)| *id);
            options.memory_devices = nodes.into_iter().map(|(_, dev)| dev).collect();
        }
        options
    }

    fn machine(&mut self, pairs: &Pairs) {
        if let Some(name) = pairs.first_or("type") {
            self.machine = match name.as_str() {
                "pc" => Machine::Pc,
                "q35" => Machine::Q35,
                name if name.starts_with("pc-i440fx") => Machine::Pc,
                name if name.starts_with("pc-q35") => Machine::Q35,
                _ => Machine::Other,
            };
        }
        if let Some(limit) = pairs.get("max-ram-below-4g").and_then(|s| size(&s, 0)) {
            self.max_below_4g = Some(limit);
        }
        if let Some(id) = pairs.get("memory-backend") {
            self.memory_devices = vec![id];
        }
    }
}

/// Objects of `-object` that encrypt the guest's memory.
const ENCRYPTING: [&str; 3] = ["sev-guest", "sev-snp-guest", "tdx-guest"];

/// Options that are read here, and `append`, whose value may look like one of them.
const TAKES_VALUE: [&str; 8] = ["name", "machine", "M", "m", "smp", "object", "numa", "append"];

/// The pairs of one option.
struct Pairs(Vec<(String, String)>);

impl Pairs {
    /// A first part without a key gets the empty key.
    fn parse(value: &str) -> Pairs {
        if value.starts_with('{') {
            let Ok(Value::Object(map)) = serde_json::from_str(value) else {
                return Pairs(Vec::new());
            };
            let text = |value: Value| match value {
                Value::String(text) => text,
                other => other.to_string(),
            };
            return Pairs(map.into_iter().map(|(k, v)| (k, text(v))).collect());
        }
        let pair = |(index, part): (usize, String)| match part.split_once('=') {
            Some((key, value)) => (key.to_owned(), value.to_owned()),
            None if index == 0 => (String::new(), part),
            None => (part, "on".into()),
        };
        Pairs(split(value).into_iter().enumerate().map(pair).collect())
    }

    fn get(&self, key: &str) -> Option<String> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| v.clone())
    }

    /// The value of `key`, which is also what a first part without a key means.
    fn first_or(&self, key: &str) -> Option<String> {
        self.get(key).or_else(|| self.get(""))
    }
}

/// Splits at commas; two in a row are one that does not split.
fn split(value: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut chars = value.chars().peekable();
    while let Some(c) = chars.next() {
        let last = parts.len() - 1;
        match c {
            ',' if chars.next_if_eq(&',').is_some() => parts[last].push(','),
            ',' => parts.push(String::new()),
            c => parts[last].push(c),
        }
    }
    parts
}

/// A size with a suffix; `shift` is the unit of a bare number.
fn size(text: &str, shift: u32) -> Option<u64> {
    let text = text.trim();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, suffix) = text.split_at(digits);
    let shift = match suffix.to_ascii_lowercase().as_str() {
        "" => shift,
        "b" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift).filter(|&bytes| bytes > 0)
}

/// vCPUs at start: the number, else the product of the topology.
fn vcpus(pairs: &Pairs) -> u32 {
    let number = |key: &str| pairs.get(key).and_then(|n| n.parse::<u32>().ok()).filter(|&n| n > 0);
    let given = pairs.first_or("cpus").and_then(|n| n.parse().ok()).filter(|&n| n > 0);
    let product = ["sockets", "dies", "clusters", "modules", "cores", "threads"]
        .iter()
        .filter_map(|key| number(key))
        .fold(1u32, u32::saturating_mul);
    given.or(number("maxcpus")).unwrap_or(product)
}

fn backend(pairs: &Pairs) -> Option<Backend> {
    let kind = pairs.first_or("qom-type")?;
    kind.strip_prefix("memory-backend-")?;
    Some(Backend {
        id: pairs.get("id")?,
        size: size(&pairs.get("size")?, 0)?,
        path: pairs.get("mem-path").map(PathBuf::from),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Options {
        Options::parse(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn reads_a_plain_command_line() {
        let options = parse(
            "qemu-system-x86_64 -nodefaults -name a,,b,debug-threads=on -machine pc -m 5G -smp 4,sockets=2,cores=2 \
             -append -m -qmp unix:/tmp/q,server=on,wait=off -object rng-random,id=r",
        );
        assert_eq!(options.name.as_deref(), Some("a,b"));
        assert_eq!((options.machine, options.memory, options.vcpus), (Machine::Pc, 5 << 30, 4));
        assert!(options.backends.is_empty() && options.confidential.is_none());
        let secret = parse(
            "qemu -object sev-snp-guest,id=sev0 -machine q35,confidential-guest-support=sev0",
        );
        assert_eq!(secret.confidential.as_deref(), Some("sev-snp-guest"));
    }

    #[test]
    fn reads_libvirts_command_line() {
        let options = parse(
            r#"/usr/bin/qemu-system-x86_64 -name guest=web,debug-threads=on -machine pc-q35-7.2,usb=off,memory-backend=pc.ram -m size=1048576k -object {"qom-type":"memory-backend-memfd","id":"pc.ram","share":true,"size":1073741824} -overcommit mem-lock=off -smp 2,sockets=2,cores=1,threads=1 -chardev socket,id=charmonitor,fd=31,server=on,wait=off -mon chardev=charmonitor,id=monitor,mode=control -chardev socket,id=mine,path=/run/mine,server=on -mon chardev=mine,mode=control -chardev socket,id=other,path=/var/lib/libvirt/x -mon chardev=other,mode=control"#,
        );
        assert_eq!(options.name.as_deref(), Some("web"));
        assert_eq!((options.machine, options.memory), (Machine::Q35, 1 << 30));
        let backend = Backend { id: "pc.ram".into(), size: 1 << 30, path: None };
        assert_eq!(options.backends, [backend]);
        assert_eq!(options.memory_devices, ["pc.ram"]);
    }

    #[test]
    fn reads_numa_nodes_in_their_order() {
        let options = parse(
            "qemu --m 2048 -object memory-backend-ram,id=b,size=1G -object memory-backend-file,size=1024M,id=a,mem-path=/x \
             -numa node,nodeid=1,memdev=b -numa node,nodeid=0,memdev=a -smp cores=3,threads=2",
        );
        assert_eq!(options.memory_devices, ["a", "b"]);
        assert_eq!(options.backends[1].path, Some("/x".into()));
        assert_eq!((options.memory, options.vcpus), (2 << 30, 6));
    }

    #[test]
    fn survives_nonsense() {
        for line in ["", "qemu", "qemu -m", "qemu -m x -smp -1 -object {", "qemu -m 99999999999T"] {
            let options = parse(line);
            assert_eq!((options.memory, options.vcpus), (128 << 20, 1), "{line}");
        }
        assert_eq!(size("1k", 20), Some(1024));
        assert_eq!(size("7", 20), Some(7 << 20));
        assert_eq!(split("a,,,b,"), ["a,", "b", ""]);
    }
}
