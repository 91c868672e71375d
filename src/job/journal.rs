//! Outcomes that Postgres could not take yet, kept in a local file until it does.
//!
//! An outcome that was seen is written here and synced to disk at the first settling that fails.
//! A worker takes over what ended workers have left behind before it takes its first delivery, and
//! settles it by the same guarded statements: an entry that was settled all the same changes
//! nothing. Each worker writes a file of its own in the journal's folder, locked for as long as it
//! lives; the files hold arguments and results, and are readable by their owner alone.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::call::job::{Job, Limits};
use crate::call::reply::Status;
use crate::ledger::state::Terms;
use crate::ledger::{ClaimRequest, Settling};
use crate::outcome::{EffectClass, Outcome};
use crate::telemetry::chain;

const EXTENSION: &str = "jsonl";

/// This worker's file, made when it is first needed.
pub struct Journal {
    folder: PathBuf,
    open: Arc<Mutex<Option<OpenJournal>>>,
}

struct OpenJournal {
    file: File,
    path: PathBuf,
    unsettled: usize,
}

/// An outcome in the journal; [`Journal::settled`] takes it out.
#[derive(Debug)]
#[must_use]
pub(super) struct Noted(());

/// One line of the file: all that the guarded statements need.
#[derive(Serialize, Deserialize)]
struct Entry {
    conversation_id: String,
    turn_index: u64,
    ordinal: u64,
    name: String,
    response_id: Option<String>,
    args: Box<RawValue>,
    meta: Option<Box<RawValue>>,
    sent_args: Box<RawValue>,
    effect: EffectClass,
    sent_as: [u8; 32],
    timeout_us: i64,
    claim: Uuid,
    attempt: i32,
    worker: String,
    status: Status,
    outcome: Outcome,
    #[serde(default)]
    evident: bool,
    #[serde(default)]
    trail: Option<Box<RawValue>>,
}

impl Journal {
    /// A journal in a folder, which is made when it is first needed.
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), open: Arc::default() }
    }

    /// Writes an outcome down and syncs it to disk.
    pub(super) async fn note(&self, settling: &Settling, status: Status) -> io::Result<Noted> {
        let mut line = serde_json::to_vec(&Entry::of(settling, status)?)?;
        line.push(b'\n');
        let (folder, open) = (self.folder.clone(), self.open.clone());
        blocking(move || {
            let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
            let journal = match &mut *open {
                Some(journal) => journal,
                empty => empty.insert(OpenJournal::create(&folder)?),
            };
            journal.file.write_all(&line)?;
            journal.file.sync_data()?;
            journal.unsettled += 1;
            Ok(Noted(()))
        })
        .await
    }

    /// Takes an outcome out; with the last one the file goes.
    pub(super) async fn settled(&self, _: Noted) -> io::Result<()> {
        let open = self.open.clone();
        blocking(move || {
            let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(journal) = &mut *open else { return Ok(()) };
            journal.unsettled = journal.unsettled.saturating_sub(1);
            if journal.unsettled > 0 {
                return Ok(());
            }
            // Removed while it is locked: nobody takes over what is settled.
            let removed = std::fs::remove_file(&journal.path);
            *open = None;
            removed
        })
        .await
    }

    /// What ended workers have left behind, each file still locked.
    pub(super) fn left_behind(&self) -> io::Result<Vec<Leftover>> {
        let entries = match std::fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut left = Vec::new();
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == EXTENSION) {
                left.extend(Leftover::open(path)?);
            }
        }
        Ok(left)
    }
}

impl OpenJournal {
    fn create(folder: &Path) -> io::Result<Self> {
        use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let path = folder.join(format!("{}.{EXTENSION}", Uuid::new_v4()));
        let file = OpenOptions::new().create_new(true).append(true).mode(0o600).open(&path)?;
        file.lock()?;
        // The file's name must outlast a crash as well as its bytes.
        File::open(folder)?.sync_all()?;
        Ok(Self { file, path, unsettled: 0 })
    }
}

/// The file of a worker that has ended.
pub(super) struct Leftover {
    path: PathBuf,
    file: File,
}

impl Leftover {
    /// `None`: its worker lives, or another worker is taking it over.
    fn open(path: PathBuf) -> io::Result<Option<Self>> {
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { path, file })),
            Err(std::fs::TryLockError::WouldBlock) => Ok(None),
            Err(std::fs::TryLockError::Error(error)) => Err(error),
        }
    }

    /// Its outcomes. A last line that was cut when its worker ended was never synced, and is left
    /// out with a word in the log.
    pub(super) fn read(&self) -> io::Result<Vec<(Settling, Status)>> {
        let mut settlings = Vec::new();
        for line in BufReader::new(&self.file).lines() {
            match serde_json::from_str::<Entry>(&line?)
                .map_err(io::Error::from)
                .and_then(Entry::settling)
            {
                Ok(settling) => settlings.push(settling),
                Err(error) => {
                    tracing::error!(path = %self.path.display(), error = %chain(&error), "a line of the journal cannot be read");
                }
            }
        }
        Ok(settlings)
    }

    /// Removes the file once the ledger has everything.
    pub(super) fn remove(self) -> io::Result<()> {
        match std::fs::remove_file(self.path) {
            // Its worker removed it between our opening and our locking it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }
}

impl Entry {
    fn of(settling: &Settling, status: Status) -> io::Result<Self> {
        let (job, terms) = (&settling.request.job, &settling.request.terms);
        let raw =
            |text: &Bytes| serde_json::from_slice::<Box<RawValue>>(text).map_err(io::Error::from);
        Ok(Self {
            conversation_id: job.conversation_id.as_str().to_owned(),
            turn_index: job.turn_index.get(),
            ordinal: job.ordinal.get(),
            name: job.name.as_str().to_owned(),
            response_id: job.response_id.as_ref().map(|id| id.as_str().to_owned()),
            args: raw(&job.args)?,
            meta: job.meta.as_ref().map(raw).transpose()?,
            sent_args: raw(&settling.args)?,
            effect: terms.effect,
            sent_as: terms.sent_as,
            timeout_us: terms.timeout,
            claim: settling.claim,
            attempt: settling.attempt,
            worker: settling.request.worker.to_string(),
            status,
            outcome: settling.outcome.clone(),
            evident: settling.evident,
            trail: settling.trail.as_deref().map(serde_json::from_slice).transpose()?,
        })
    }

    fn settling(self) -> io::Result<(Settling, Status)> {
        let body = serde_json::json!({
            "conversation_id": self.conversation_id,
            "turn_index": self.turn_index,
            "ordinal": self.ordinal,
            "name": self.name,
            "response_id": self.response_id,
        });
        // The arguments keep their text, so they are set beside the rest, not parsed with it.
        let head = body.to_string();
        let meta = self.meta.as_deref().map_or("null", RawValue::get);
        let head = head.strip_suffix('}').unwrap_or(&head);
        let body = format!("{head},\"meta\":{meta},\"args\":{}}}", self.args.get());
        // It was within the limits of the worker that took it.
        let limits = Limits {
            message_bytes_max: usize::MAX,
            conversation_id_bytes_max: usize::MAX,
            id_bytes_max: usize::MAX,
        };
        let job = Job::decode(&body.into(), None, None, &limits)
            .map_err(|bad| io::Error::other(bad.error))?;
        let request = ClaimRequest {
            job: Arc::new(job),
            terms: Terms {
                effect: self.effect,
                sent_as: self.sent_as,
                timeout: self.timeout_us,
                key_memory: None,
                max_attempts: 0,
                approval: false,
            },
            lease: Duration::ZERO,
            worker: self.worker.into(),
        };
        let args = Bytes::from(self.sent_args.get().to_owned());
        let settling = Settling {
            request,
            claim: self.claim,
            attempt: self.attempt,
            args,
            outcome: self.outcome,
            evident: self.evident,
            trail: self.trail.map(|trail| trail.get().as_bytes().to_vec()),
        };
        Ok((settling, self.status))
    }
}

/// Runs a little file work off the threads that serve connections.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::EffectClass;

    fn settling() -> Settling {
        let body = r#"{"conversation_id":"c\u00e9","turn_index":3,"ordinal":1,"name":"t","meta":{"m":1.0},"args":{ "a" : 1.50 }}"#;
        let job = Job::decode(&Bytes::from_static(body.as_bytes()), None, None, &Limits::default())
            .unwrap();
        let args = job.args.clone();
        let content = RawValue::from_string(r#"{"paid": 1.50}"#.to_owned()).unwrap();
        Settling {
            request: ClaimRequest {
                job: Arc::new(job),
                terms: Terms {
                    effect: EffectClass::KeyedWrite,
                    sent_as: [7; 32],
                    timeout: 9,
                    key_memory: None,
                    max_attempts: 0,
                    approval: false,
                },
                lease: Duration::from_secs(1),
                worker: "w".into(),
            },
            claim: Uuid::new_v4(),
            attempt: 2,
            args,
            outcome: Outcome { content: Some(content), ..Outcome::default() },
            evident: true,
            trail: Some(br#"[{"branch":"lost"}]"#.to_vec()),
        }
    }

    #[tokio::test]
    async fn what_an_ended_worker_left_is_read_as_it_was_written() {
        let folder = std::env::temp_dir().join(format!("callonce-journal-{}", Uuid::new_v4()));
        let (journal, settling) = (Journal::new(&folder), settling());
        drop(journal.note(&settling, Status::Completed).await.unwrap());
        assert!(journal.left_behind().unwrap().is_empty(), "a living worker's file was taken over");
        drop(journal);

        let left = Journal::new(&folder).left_behind().unwrap();
        let [leftover] = left.try_into().unwrap_or_else(|_| panic!("one file was left"));
        let read = leftover.read().unwrap();
        let [(again, Status::Completed)] = &read[..] else {
            panic!("one completed outcome was left")
        };
        assert_eq!(again.request.job.digest, settling.request.job.digest);
        assert_eq!(
            (&again.request.job.args, &again.args),
            (&settling.request.job.args, &settling.args)
        );
        assert_eq!((again.claim, again.attempt), (settling.claim, 2));
        assert_eq!(again.outcome.content.as_ref().unwrap().get(), r#"{"paid": 1.50}"#);
        assert_eq!((again.evident, &again.trail), (true, &settling.trail));
        leftover.remove().unwrap();
        std::fs::remove_dir(folder).unwrap();
    }

    #[tokio::test]
    async fn the_file_goes_with_the_last_outcome() {
        let folder = std::env::temp_dir().join(format!("callonce-journal-{}", Uuid::new_v4()));
        let journal = Journal::new(&folder);
        let first = journal.note(&settling(), Status::Completed).await.unwrap();
        let second = journal.note(&settling(), Status::Unknown).await.unwrap();
        journal.settled(first).await.unwrap();
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
        journal.settled(second).await.unwrap();
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
        std::fs::remove_dir(folder).unwrap();
    }
}
