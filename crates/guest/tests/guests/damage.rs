// SPDX-License-Identifier: MIT OR Apache-2.0
//! A guest whose memory reads as damaged: every call returns, and no damage is remembered.

use crate::common::alone;
use crate::qemu::Qemu;
use crate::random::Random;
use reprieve_guest::error::Result;
use reprieve_guest::memory::Physical;
use reprieve_guest::vmm::Segment;
use reprieve_guest::{Guest, Liveness, Options};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Reads per round. A round asks for everything eleven times and attaches once, which takes some
/// ten thousand reads of a sound guest.
const READS_MAX: u64 = 30_000_000;

/// Guest memory of which some reads return damaged bytes.
struct Damaged {
    ram: Arc<dyn Physical>,
    random: Arc<Mutex<Random>>,
    /// Damaged reads of a thousand.
    rate: Arc<AtomicU64>,
    reads: Arc<AtomicU64>,
}

impl Physical for Damaged {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.ram.read(address, buffer)?;
        let mut random = self.random.lock().unwrap();
        if random.next() % 1000 < self.rate.load(Ordering::Relaxed) {
            let mut bytes = buffer.to_vec();
            random.damage(&mut bytes);
            bytes.resize(buffer.len(), 0xff);
            buffer.copy_from_slice(&bytes);
        }
        Ok(())
    }

    fn segments(&self) -> &[Segment] {
        self.ram.segments()
    }
}

/// Makes every call that reads the guest.
pub fn ask_all(guest: &Guest) {
    let _ = (guest.jiffies(), guest.present(), guest.vcpus(), guest.alive(), guest.layout());
    let _ = (guest.modules(), guest.resolve(0xffff_ffff_c000_1234));
    for n in 0..3 {
        let _ = guest.current_task(n).and_then(|task| guest.task(task));
    }
    if let Ok(rcu) = guest.rcu() {
        let _ = (rcu.age(), rcu.owing());
    }
}

#[test]
#[ignore = "takes minutes: attaches to damaged guests hundreds of times"]
fn a_damaged_guest_does_no_harm() {
    let _alone = alone();
    let qemu = Qemu::with_guest("deb:6.12");
    let random = Arc::new(Mutex::new(Random::new(7)));
    let (rate, reads) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let through = |ram: Arc<dyn Physical>| -> Arc<dyn Physical> {
        let (random, rate, reads) = (random.clone(), rate.clone(), reads.clone());
        Arc::new(Damaged { ram, random, rate, reads })
    };
    let options = Options { through: Some(&through), ..Options::default() };
    let guest = qemu.attach(&options);
    let vm = qemu.vm();
    let (mut attached, mut refused, mut most) = (0, 0, 0);
    for round in 0..300 {
        rate.store(1 << (round % 8), Ordering::Relaxed);
        let before = reads.load(Ordering::Relaxed);
        for _ in 0..10 {
            ask_all(&guest);
        }
        match Guest::attach_with(&vm, &options) {
            Ok(other) => {
                attached += 1;
                ask_all(&other);
            }
            Err(_) => refused += 1,
        }
        let round_reads = reads.load(Ordering::Relaxed) - before;
        most = most.max(round_reads);
        assert!(round_reads < READS_MAX, "{round_reads} reads");
    }
    eprintln!("at most {most} reads per round; {attached} attached, {refused} refused");
    assert!(attached > 0 && refused > 0, "{attached} attached, {refused} refused");
    // Only the reads were damaged, not the guest.
    rate.store(0, Ordering::Relaxed);
    let sound = Guest::attach(&vm).unwrap();
    assert_eq!((sound.boot(), sound.alive().unwrap()), (guest.boot(), Liveness::Same));
}
