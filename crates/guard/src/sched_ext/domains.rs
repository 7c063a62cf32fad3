// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which CPUs have a queue in common.

use super::program::constants::{MAX_CPUS, MAX_DOMAINS};
use crate::options::Queues;
use std::collections::BTreeMap;
use std::path::Path;

/// The name of the group of a CPU, by the CPU's directory in sysfs; none if it is of no group.
type Group = fn(&Path) -> Option<String>;

/// Domains are numbered from 0 on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domains {
    /// By CPU. One that is not there is in domain 0.
    pub of_cpu: Vec<u16>,
    /// How many CPUs each has, 0 if unknown; at least one domain, and at most [`MAX_DOMAINS`].
    pub cpus: Vec<u16>,
    /// Which they are, a bit each.
    pub masks: Vec<[u64; MAX_CPUS / 64]>,
}

impl Domains {
    /// As the kernel tells of its CPUs.
    pub fn of_host(queues: Queues) -> Domains {
        Domains::below(Path::new("/sys/devices/system/cpu"), queues)
    }

    /// The next larger ones where there would be more than [`MAX_DOMAINS`].
    fn below(dir: &Path, queues: Queues) -> Domains {
        let groups: [(Queues, Group); 4] = [
            (Queues::Cpu, |cpu| has_topology(cpu).then(|| cpu.display().to_string())),
            (Queues::Cache, last_level),
            (Queues::Package, package),
            (Queues::Host, |cpu| has_topology(cpu).then(String::new)),
        ];
        let larger = groups.into_iter().skip_while(|(which, _)| *which != queues);
        let mut domains = larger.map(|(_, group)| {
            let all = (0..MAX_CPUS).map(|cpu| group(&dir.join(format!("cpu{cpu}"))));
            number(all.collect())
        });
        domains.find(|domains| domains.cpus.len() <= MAX_DOMAINS).unwrap_or_else(|| number(vec![]))
    }
}

/// Whether the CPU is online.
fn has_topology(cpu: &Path) -> bool {
    cpu.join("topology").exists()
}

/// Numbers the groups in the order of their first CPUs. CPUs of no group are not there; where none
/// is of any group, it is not known which there are.
fn number(groups: Vec<Option<String>>) -> Domains {
    if groups.iter().all(Option::is_none) {
        return Domains {
            of_cpu: vec![0; MAX_CPUS],
            cpus: vec![0],
            masks: vec![[0; MAX_CPUS / 64]],
        };
    }
    let mut numbers = BTreeMap::new();
    let (mut cpus, mut masks) = (Vec::new(), Vec::new());
    let of_cpu = groups.into_iter().enumerate().map(|(cpu, group)| {
        let Some(group) = group else { return 0 };
        let number = *numbers.entry(group).or_insert_with(|| {
            cpus.push(0);
            masks.push([0; MAX_CPUS / 64]);
            cpus.len() - 1
        });
        cpus[number] += 1;
        masks[number][cpu / 64] |= 1 << (cpu % 64);
        number as u16
    });
    Domains { of_cpu: of_cpu.collect(), cpus, masks }
}

/// The CPUs with which the CPU shares the cache of the highest level; those of its package where
/// the kernel knows of no cache.
fn last_level(cpu: &Path) -> Option<String> {
    let caches = std::fs::read_dir(cpu.join("cache")).into_iter().flatten().flatten();
    let caches = caches.filter_map(|cache| {
        let read = |name| std::fs::read_to_string(cache.path().join(name)).ok();
        Some((read("level")?.trim().parse::<u32>().ok()?, read("shared_cpu_list")?))
    });
    caches.max().map(|(_, cpus)| cpus).or_else(|| package(cpu))
}

fn package(cpu: &Path) -> Option<String> {
    std::fs::read_to_string(cpu.join("topology/physical_package_id")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu(dir: &Path, cpu: usize, package: &str, caches: &[(u32, &str)]) {
        let dir = dir.join(format!("cpu{cpu}"));
        let put = |name: String, text: &str| {
            let path = dir.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{text}\n")).unwrap();
        };
        put("topology/physical_package_id".into(), package);
        for (index, (level, cpus)) in caches.iter().enumerate() {
            put(format!("cache/index{index}/level"), &level.to_string());
            put(format!("cache/index{index}/shared_cpu_list"), cpus);
        }
    }

    #[test]
    fn the_cache_of_the_highest_level_counts() {
        let dir = tempfile::tempdir().unwrap();
        for (n, last) in ["0-1", "0-1", "3", "4"].into_iter().enumerate() {
            // CPU 2 is not there.
            let n = if n < 2 { n } else { n + 1 };
            cpu(dir.path(), n, "0", &[(3, last), (1, &n.to_string()), (2, &n.to_string())]);
        }
        let found = Domains::below(dir.path(), Queues::Cache);
        assert_eq!(found.cpus, [2, 1, 1]);
        assert_eq!(found.of_cpu[..6], [0, 0, 0, 1, 2, 0]);
        assert_eq!(found.masks.iter().map(|mask| mask[0]).collect::<Vec<_>>(), [0b11, 8, 16]);
        let cpus = |queues| Domains::below(dir.path(), queues).cpus;
        assert_eq!(cpus(Queues::Cpu), [1, 1, 1, 1]);
        assert_eq!(cpus(Queues::Package), [4]);
        assert_eq!(cpus(Queues::Host), [4]);
    }

    #[test]
    fn packages_count_where_no_cache_is_known_or_there_are_too_many() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..4 {
            cpu(dir.path(), n, &(n / 2).to_string(), &[]);
        }
        assert_eq!(Domains::below(dir.path(), Queues::Cache).cpus, [2, 2]);
        for n in 0..=MAX_DOMAINS {
            cpu(dir.path(), n, &(n / 2).to_string(), &[(2, &n.to_string())]);
        }
        assert_eq!(Domains::below(dir.path(), Queues::Cache).cpus.len(), MAX_DOMAINS / 2 + 1);
    }

    #[test]
    fn there_is_one_where_nothing_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let found = Domains::below(dir.path(), Queues::Cache);
        assert_eq!((found.cpus.len(), found.of_cpu.len()), (1, MAX_CPUS));
    }
}
