// SPDX-License-Identifier: MIT OR Apache-2.0
//! Real guests for the tests.

#![allow(dead_code)] // Not every test program needs all of this.

#[path = "../../../guest/tests/guests/patience.rs"]
pub mod patience;

use patience::Wait;
use reprieve_lab::images::initramfs::Initramfs;
use reprieve_lab::images::{Images, Program};
use reprieve_lab::process::Cancel;
use reprieve_lab::progress::Silent;
use reprieve_lab::vm::{Accel, Config, Vm};
use reprieve_watch::model::{Snapshot, VmSnapshot as Seen, VmState};
use reprieve_watch::{Options, Watch, Which};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;

/// A running guest, under TCG, and the directory of its console.
pub struct Guest {
    pub vm: Vm,
    pub name: String,
    _dir: Directory,
}

struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Boots a guest with `kernel` (`deb:6.12`).
pub fn boot(kernel: &str, vcpus: u32, args: &str) -> Guest {
    boot_with(kernel, None, vcpus, args, false)
}

/// Paths of the kernel and the initramfs `other` in the guest.
pub const OTHER: [&str; 2] = ["/other/kernel", "/other/initrd"];

/// Boots a guest with `kernel`. The kernel and initramfs `other`, if given, are files in the guest,
/// for kexec. `region`: its programs' hints can reach its host.
pub fn boot_with(kernel: &str, other: Option<&str>, vcpus: u32, args: &str, region: bool) -> Guest {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    if std::env::var_os("REPRIEVE_INIT").is_none() {
        let init = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/release/reprieve-init");
        // SAFETY: before this process has threads that read the environment.
        unsafe { std::env::set_var("REPRIEVE_INIT", init) };
    }
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("watch-test-{}-{number}", std::process::id());
    let dir = Directory(std::env::temp_dir().join(&name));
    std::fs::create_dir_all(&dir.0).unwrap();
    let cancel = Cancel::default();
    let images = Images::open(&cancel, &Silent).unwrap();
    let none: [Program; 0] = [];
    let kernels: Vec<String> =
        [Some(kernel), other].into_iter().flatten().map(Into::into).collect();
    let set = images.prepare(&kernels, &none).unwrap();
    let image = &set.guests[kernel];
    let mut initrd = image.initrd.clone();
    if let Some(other) = other {
        // The kernel unpacks one archive after the other.
        let (other, mut more) = (&set.guests[other], Initramfs::default());
        more.file(&other.vmlinuz, OTHER[0]).unwrap();
        more.file(&other.initrd, OTHER[1]).unwrap();
        let second = dir.0.join("more");
        more.write(&second).unwrap();
        let both = [std::fs::read(&initrd).unwrap(), std::fs::read(&second).unwrap()].concat();
        initrd = dir.0.join("initrd");
        std::fs::write(&initrd, both).unwrap();
    }
    let config = Config {
        name: name.clone(),
        accel: Accel::Tcg,
        dilation: Default::default(),
        cpu: None,
        vcpus,
        spare_vcpus: 0,
        memory_mib: 512,
        // Users' guests have KASLR.
        kernel: image.vmlinuz.clone(),
        initrd,
        args: args.into(),
        console: dir.0.join("console.log"),
        region,
    };
    let vm = patience::boot(&config, &set.qemu);
    Guest { vm, name, _dir: dir }
}

/// Watches that guest alone.
pub fn watch(guest: &Guest, events: bool) -> Watch {
    let vms = Which::Named(vec![guest.name.clone()]);
    let options = Options { vms, events, ..Options::default() };
    Watch::start(&options).unwrap()
}

/// The only VM in a snapshot.
pub fn only(snapshot: &Snapshot) -> Option<&Seen> {
    assert!(snapshot.vms.len() <= 1, "{snapshot:?}");
    snapshot.vms.first()
}

/// Takes snapshots until `is` accepts the VM, and returns it.
pub fn wait_for(watch: &mut Watch, what: &str, mut is: impl FnMut(&Seen) -> bool) -> Seen {
    let mut wait = Wait::new(what);
    loop {
        let snapshot = watch.snapshot().unwrap();
        if let Some(vm) = only(&snapshot) {
            if is(vm) {
                return vm.clone();
            }
            assert_ne!(vm.state, VmState::Gone, "the VM ended before {what}");
        }
        wait.pause(|| format!("{snapshot:#?}"));
    }
}

/// Waits until the guest can be read.
pub fn wait_until_watching(watch: &mut Watch) -> Seen {
    wait_for(watch, "the guest", |vm| vm.state == VmState::Watching)
}

/// Threads of this process that compute until this is dropped.
pub struct Spinners(Arc<AtomicBool>, Vec<JoinHandle<()>>);

pub fn spin(threads: usize) -> Spinners {
    spin_on(threads, || ())
}

/// Each begins with `begin`.
pub fn spin_on(threads: usize, begin: impl Fn() + Clone + Send + 'static) -> Spinners {
    let stop = Arc::new(AtomicBool::new(false));
    let spin = |_| {
        let (stop, begin) = (stop.clone(), begin.clone());
        std::thread::spawn(move || {
            begin();
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        })
    };
    let threads = (0..threads).map(spin).collect();
    Spinners(stop, threads)
}

impl Drop for Spinners {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        for thread in self.1.drain(..) {
            let _ = thread.join();
        }
    }
}
