// SPDX-License-Identifier: MIT OR Apache-2.0
//! The structures of the `ctl` calls, as the kernel fills them in.

use libc::{c_int, c_ulong, ipc_perm, msqid_ds, semid_ds, shmid_ds};
use reprieve_ipc_core::{MsgStatus, SemStatus, ShmStatus, Status};

#[repr(C)]
pub struct MsgInfo {
    pub pool: c_int,
    pub map: c_int,
    pub max: c_int,
    pub mnb: c_int,
    pub mni: c_int,
    pub ssz: c_int,
    pub tql: c_int,
    pub seg: u16,
}

#[repr(C)]
pub struct ShmLimits {
    pub max: c_ulong,
    pub min: c_ulong,
    pub mni: c_ulong,
    pub seg: c_ulong,
    pub all: c_ulong,
    pub unused: [c_ulong; 4],
}

#[repr(C)]
pub struct ShmInfo {
    pub used_ids: c_int,
    pub total: c_ulong,
    pub resident: c_ulong,
    pub swapped: c_ulong,
    pub attempts: c_ulong,
    pub successes: c_ulong,
}

fn fill(perm: &mut ipc_perm, status: &Status) {
    perm.__key = status.key;
    perm.uid = status.uid;
    perm.gid = status.gid;
    perm.cuid = status.cuid;
    perm.cgid = status.cgid;
    perm.mode = status.mode as _;
    perm.__seq = status.sequence as _;
}

pub fn sem(status: &SemStatus) -> semid_ds {
    // SAFETY: plain data.
    let mut ds: semid_ds = unsafe { std::mem::zeroed() };
    fill(&mut ds.sem_perm, &status.status);
    ds.sem_otime = status.otime as _;
    ds.sem_ctime = status.status.ctime as _;
    ds.sem_nsems = status.count as _;
    ds
}

pub fn msg(status: &MsgStatus) -> msqid_ds {
    // SAFETY: plain data.
    let mut ds: msqid_ds = unsafe { std::mem::zeroed() };
    fill(&mut ds.msg_perm, &status.status);
    ds.msg_stime = status.stime as _;
    ds.msg_rtime = status.rtime as _;
    ds.msg_ctime = status.status.ctime as _;
    ds.__msg_cbytes = status.bytes as _;
    ds.msg_qnum = status.messages as _;
    ds.msg_qbytes = status.most_bytes as _;
    ds.msg_lspid = status.sender;
    ds.msg_lrpid = status.receiver;
    ds
}

pub fn shm(status: &ShmStatus) -> shmid_ds {
    // SAFETY: plain data.
    let mut ds: shmid_ds = unsafe { std::mem::zeroed() };
    fill(&mut ds.shm_perm, &status.status);
    ds.shm_segsz = status.size as _;
    ds.shm_atime = status.atime as _;
    ds.shm_dtime = status.dtime as _;
    ds.shm_ctime = status.status.ctime as _;
    ds.shm_cpid = status.creator;
    ds.shm_lpid = status.last;
    ds.shm_nattch = status.attached as _;
    ds
}
