// SPDX-License-Identifier: MIT OR Apache-2.0
//! Message queues across processes.

mod common;

use common::{Child, namespace};
use libc::IPC_PRIVATE;
use reprieve_ipc::{Namespace, Result};

fn queue(n: &Namespace) -> i32 {
    n.msgget(IPC_PRIVATE, 0o600).unwrap()
}

fn send(n: &Namespace, id: i32, kind: i64, text: &str) {
    n.msgsnd(id, kind, text.as_bytes(), 0).unwrap();
}

fn receive(n: &Namespace, id: i32, kind: i64, flags: i32) -> Result<(i64, String)> {
    let mut to = [0; 64];
    let (kind, bytes) = n.msgrcv(id, &mut to, kind, flags)?;
    Ok((kind, String::from_utf8_lossy(&to[..bytes]).into_owned()))
}

fn is(kind: i64, text: &str) -> Result<(i64, String)> {
    Ok((kind, text.into()))
}

#[test]
fn a_stream_across_processes_is_complete_and_in_order() {
    let (_directory, n) = namespace();
    let id = queue(&n);
    let senders: Vec<Child> = (1..=3i64)
        .map(|kind| {
            Child::run(|| {
                for i in 0..2000u32 {
                    let mut message = i.to_le_bytes().to_vec();
                    message.resize(4 + i as usize % 200, kind as u8);
                    n.msgsnd(id, kind, &message, 0).unwrap();
                }
            })
        })
        .collect();
    let receivers: Vec<Child> = (1..=3i64)
        .map(|kind| {
            Child::run(|| {
                for i in 0..2000u32 {
                    let mut to = [0; 300];
                    let (_, bytes) = n.msgrcv(id, &mut to, kind, 0).unwrap();
                    assert_eq!(bytes, 4 + i as usize % 200);
                    assert_eq!(to[..4], i.to_le_bytes());
                    assert!(to[4..bytes].iter().all(|&b| i64::from(b) == kind));
                }
            })
        })
        .collect();
    senders.into_iter().chain(receivers).for_each(Child::succeeds);
    let status = n.msg_status(id).unwrap();
    assert_eq!((status.messages, status.bytes), (0, 0));
}

#[test]
fn a_killed_receiver_takes_no_message_along() {
    let (_directory, n) = namespace();
    let id = queue(&n);
    let first = Child::run(|| drop(receive(&n, id, 0, 0)));
    common::until_asleep(&first);
    let second = Child::run(|| assert_eq!(receive(&n, id, 0, 0), is(1, "x")));
    common::until_asleep(&second);
    first.kill();
    send(&n, id, 1, "x");
    second.succeeds();
}
