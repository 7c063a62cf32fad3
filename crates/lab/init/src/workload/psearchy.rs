// SPDX-License-Identifier: MIT OR Apache-2.0
//! A parallel indexer of files, after MOSBENCH's psearchy (Boyd-Wickizer and others, "An Analysis
//! of Linux Scalability to Many Cores", OSDI 2010).
//!
//! Each thread maps the next file of the corpus, counts its words in a table of its own, and unmaps
//! the file. After a batch of files it sorts the table by word, merges it into the index that all
//! threads share, and takes a new one, which is mapped as well. Threads of one address space
//! contend for its lock, fault their pages in one by one, and leave regions, page tables and files
//! that the kernel frees after a grace period.

use super::threads::Threads;
use super::{Directory, Load, Operation};
use crate::sys::{Context, Result, cpus};
use memmap2::{MmapMut, MmapOptions};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a file, uniformly at random.
const SMALLEST: u64 = 4 << 10;
const LARGEST: u64 = 64 << 10;

/// Words of the corpus; few of them make up most of it, as in texts.
const WORDS: u64 = 20_000;

/// Letters of a word.
const SHORTEST: u64 = 3;
const LONGEST: u64 = 12;

/// Slots of a thread's table: a power of two, more than there can be words.
const SLOTS: usize = 1 << 16;
const _: () = assert!(SLOTS > 2 * WORDS as usize);

/// Files between two merges.
const BATCH: u32 = 16;

/// Parts of the shared index, each with a lock.
const PARTS: usize = 16;

pub fn prepare(threads: u32, files: u32, seed: u64) -> Result<Box<dyn Load>> {
    let directory = Directory::mount("corpus")?;
    let corpus = Arc::new(Corpus::write(directory.path(), files.max(1), seed)?);
    let index = Arc::new(Index::default());
    let mut work: Vec<(Option<u32>, Operation)> = Vec::new();
    for i in 0..threads {
        let mut indexer = Indexer::new(corpus.clone(), index.clone()).context("an indexer")?;
        let operation: Operation = Box::new(move |slot| {
            indexer.file()?;
            slot.operation();
            Ok(())
        });
        work.push((Some(i % cpus()), operation));
    }
    Ok(Box::new(Threads::prepare("index", "file", work)?.keeping(directory)))
}

/// The files, and which is the next.
struct Corpus {
    paths: Vec<PathBuf>,
    next: AtomicU64,
}

impl Corpus {
    fn write(directory: &Path, files: u32, seed: u64) -> Result<Corpus> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let words: Vec<Vec<u8>> = (0..WORDS).map(|_| word(&mut rng)).collect();
        let mut paths = Vec::new();
        for i in 0..files {
            let bytes = rng.u64(SMALLEST..=LARGEST) as usize;
            let mut text = Vec::with_capacity(bytes + LONGEST as usize + 1);
            while text.len() < bytes {
                // The least of three: the first words come most often.
                let pick = (0..3).map(|_| rng.u64(0..WORDS)).min().unwrap_or(0);
                text.extend_from_slice(&words[pick as usize]);
                text.push(b' ');
            }
            let path = directory.join(i.to_string());
            fs::write(&path, text).context(path.display())?;
            paths.push(path);
        }
        Ok(Corpus { paths, next: AtomicU64::new(0) })
    }

    /// The files in turn, over and over, each to one thread.
    fn next(&self) -> &Path {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        &self.paths[(turn % self.paths.len() as u64) as usize]
    }
}

fn word(rng: &mut fastrand::Rng) -> Vec<u8> {
    let letters = rng.u64(SHORTEST..=LONGEST);
    (0..letters).map(|_| rng.u8(b'a'..=b'z')).collect()
}

/// How often each word, by its hash, was seen.
#[derive(Default)]
struct Index([Mutex<HashMap<u64, u64>>; PARTS]);

impl Index {
    /// Adds the counts of a table, part by part.
    fn merge(&self, mut counts: Vec<(u64, u64)>) {
        // The part is in the highest bits: sorted by word, each part is one run.
        counts.sort_unstable();
        for run in counts.chunk_by(|a, b| part(a.0) == part(b.0)) {
            let mut words = self.0[part(run[0].0)].lock().unwrap_or_else(PoisonError::into_inner);
            for (word, count) in run {
                *words.entry(*word).or_default() += count;
            }
        }
    }
}

fn part(word: u64) -> usize {
    (word >> (u64::BITS - PARTS.ilog2())) as usize
}

/// A thread's work.
struct Indexer {
    corpus: Arc<Corpus>,
    index: Arc<Index>,
    table: Table,
    files: u32,
}

impl Indexer {
    fn new(corpus: Arc<Corpus>, index: Arc<Index>) -> io::Result<Indexer> {
        Ok(Indexer { corpus, index, table: Table::new()?, files: 0 })
    }

    fn file(&mut self) -> io::Result<()> {
        let file = File::open(self.corpus.next())?;
        // SAFETY: nobody writes or truncates the file.
        let text = unsafe { MmapOptions::new().map_copy_read_only(&file)? };
        drop(file);
        for word in text.split(|byte| !byte.is_ascii_alphabetic()).filter(|word| !word.is_empty()) {
            self.table.count(hash(word));
        }
        self.files += 1;
        if self.files == BATCH {
            self.files = 0;
            let full = std::mem::replace(&mut self.table, Table::new()?);
            self.index.merge(full.counts());
        }
        Ok(())
    }
}

/// FNV-1a, with a last step that spreads it over the high bits; never 0.
fn hash(word: &[u8]) -> u64 {
    let fnv = word.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte.to_ascii_lowercase())).wrapping_mul(0x100_0000_01b3)
    });
    (fnv ^ (fnv >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15).max(1)
}

/// Words with their counts, in a mapping of its own: open addressing, a word of 0 is a free slot.
struct Table(MmapMut);

impl Table {
    fn new() -> io::Result<Table> {
        Ok(Table(MmapMut::map_anon(SLOTS * size_of::<(u64, u64)>())?))
    }

    fn slots(&mut self) -> &mut [(u64, u64)] {
        // SAFETY: a private mapping of this length, aligned to a page and borrowed as a whole;
        // zeroes are valid.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), SLOTS) }
    }

    fn count(&mut self, word: u64) {
        let slots = self.slots();
        let mut at = word as usize % SLOTS;
        while slots[at].0 != 0 && slots[at].0 != word {
            at = (at + 1) % SLOTS;
        }
        slots[at] = (word, slots[at].1 + 1);
    }

    fn counts(mut self) -> Vec<(u64, u64)> {
        self.slots().iter().copied().filter(|(word, _)| *word != 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that goes when it is dropped.
    struct Scratch(PathBuf);

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn threads_count_every_word_of_every_file_once() {
        let name = format!("reprieve-corpus-{}", std::process::id());
        let scratch = Scratch(std::env::temp_dir().join(name));
        fs::create_dir_all(&scratch.0).unwrap();
        // Two batches for each of two threads.
        let files = 4 * BATCH;
        let corpus = Arc::new(Corpus::write(&scratch.0, files, 7).unwrap());
        let index = Arc::new(Index::default());
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let (corpus, index) = (corpus.clone(), index.clone());
                scope.spawn(move || {
                    let mut indexer = Indexer::new(corpus, index).unwrap();
                    (0..2 * BATCH).for_each(|_| indexer.file().unwrap());
                });
            }
        });
        let mut expected: HashMap<u64, u64> = HashMap::new();
        for path in &corpus.paths {
            let text = fs::read_to_string(path).unwrap();
            assert!(text.len() >= SMALLEST as usize);
            for word in text.split_whitespace() {
                *expected.entry(hash(word.as_bytes())).or_default() += 1;
            }
        }
        let mut found = HashMap::new();
        for (i, words) in index.0.iter().enumerate() {
            for (word, count) in words.lock().unwrap().iter() {
                assert_eq!(part(*word), i);
                found.insert(*word, *count);
            }
        }
        assert!(found.len() > WORDS as usize / 2, "{} words", found.len());
        assert_eq!(found, expected);
    }

    #[test]
    fn a_seed_makes_the_same_corpus() {
        let word = |seed| word(&mut fastrand::Rng::with_seed(seed));
        assert_eq!(word(1), word(1));
        assert_ne!(word(1), word(2));
    }
}
