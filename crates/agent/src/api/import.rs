//! Import of documents of host records.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use http_body_util::BodyExt;
use hyper::body::Body as _;
use serde_json::json;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use anyhow::Context;

use super::answer::{Answer, Failure};
use super::work::Api;
use crate::shared::Shared;
use crate::store::{
    HOST_MAX_BYTES, HostRow, ImportError, check_document, each_host, export_host, import_host,
};

/// Time limit for a whole document.
const WHOLE: Duration = Duration::from_secs(120);
/// Longest time without any data.
const SILENCE: Duration = Duration::from_secs(10);
/// Bytes of a write.
const PART: usize = 1 << 20;

/// Writes the records of a document to the kernel. The whole document is checked before any record
/// is used; until then it is in an unnamed file beside the store.
pub(super) async fn import(State(api): State<Api>, body: Body) -> Answer<Json<serde_json::Value>> {
    let Ok(only) = Arc::clone(&api.importing).try_acquire_owned() else {
        let text = "another import is going on; try again when it is over".to_string();
        return Err(Failure(StatusCode::CONFLICT, text));
    };
    let file = timeout(WHOLE, receive(&api, body)).await;
    let file = file.map_err(|_| too_slow(WHOLE))??;
    api.work(move |shared| {
        let _only = only;
        put(shared, &file)
    })
    .await
}

fn too_slow(limit: Duration) -> Failure {
    let text = format!("the document did not come within {} s", limit.as_secs());
    Failure(StatusCode::REQUEST_TIMEOUT, text)
}

/// Receives the body into a file that is removed with its last user.
async fn receive(api: &Api, mut body: Body) -> Answer<File> {
    let most = u64::from(api.shared.kernel.setup().hosts_max) * HOST_MAX_BYTES;
    let too_large = || {
        let text = format!("the document has more than {most} bytes, the most for this hosts.max");
        Failure(StatusCode::PAYLOAD_TOO_LARGE, text)
    };
    let mut left = most;
    if body.size_hint().lower() > left {
        return Err(too_large());
    }
    let directory = api.shared.config.paths.state.clone();
    let mut file = blocking(move || {
        tempfile::tempfile_in(&directory)
            .with_context(|| format!("making a file in {}", directory.display()))
    })
    .await?;
    let mut part = Vec::new();
    loop {
        let frame = timeout(SILENCE, body.frame()).await;
        let frame = frame.map_err(|_| too_slow(SILENCE))?;
        let end = frame.is_none();
        if let Some(frame) = frame {
            let frame = frame.map_err(|error| {
                let text = format!("the document broke off: {error}");
                Failure(StatusCode::BAD_REQUEST, text)
            })?;
            let data = frame.into_data().unwrap_or_default();
            left = left.checked_sub(data.len() as u64).ok_or_else(too_large)?;
            part.extend_from_slice(&data);
        }
        if part.len() >= PART || end {
            let directory = api.shared.config.paths.state.clone();
            (file, part) = blocking(move || {
                file.write_all(&part)
                    .with_context(|| format!("keeping the document in {}", directory.display()))?;
                part.clear();
                Ok((file, part))
            })
            .await?;
        }
        if end {
            return Ok(file);
        }
    }
}

async fn blocking<T: Send + 'static>(
    action: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    spawn_blocking(action).await.context("the request failed")?
}

fn put(shared: &Shared, file: &File) -> Answer<Json<serde_json::Value>> {
    let bad = |error: ImportError| Failure(StatusCode::BAD_REQUEST, error.to_string());
    let reader = || -> std::io::Result<_> {
        let mut file = file;
        file.rewind()?;
        Ok(BufReader::new(file))
    };
    let header = check_document(reader).map_err(bad)?;
    if header.mode != shared.mode() {
        let text = format!(
            "the file holds records of mode {}, this agent runs {}",
            header.mode.name(),
            shared.mode().name()
        );
        return Err(Failure(StatusCode::CONFLICT, text));
    }
    let document = reader().context("reading the document again")?;
    let sorted = Sorted::of(document, &shared.config.paths.state)?;
    let mut importing = shared.importing(&header)?;
    // The longest unseen first: if there is no room for all, these are evicted.
    let outcome = sorted.each(|row| importing.put(&row));
    shared.note_import();
    outcome?;
    let restored = importing.finish()?;
    shared.count_hosts()?;
    Ok(Json(
        json!({ "imported": restored.restored, "left_out": restored.left_out }),
    ))
}

/// The hosts of a document in a file, the longest unseen first.
struct Sorted {
    file: File,
    /// Age in milliseconds, position and length of each host in the file.
    places: Vec<(u64, u64, u32)>,
}

impl Sorted {
    fn of(document: impl Read, directory: &Path) -> anyhow::Result<Self> {
        let context = || format!("keeping the hosts in {}", directory.display());
        let file = tempfile::tempfile_in(directory).with_context(context)?;
        let mut writer = BufWriter::new(&file);
        let mut places = Vec::new();
        let mut place = 0;
        let mut failed = Ok(());
        each_host(document, |_, row| {
            let write = |writer: &mut BufWriter<&File>| -> anyhow::Result<u32> {
                let text = export_host(&row)?;
                writer.write_all(text.as_bytes()).with_context(context)?;
                Ok(u32::try_from(text.len())?)
            };
            if failed.is_ok() {
                failed = write(&mut writer).map(|length| {
                    places.push((row.seen_age_ms, place, length));
                    place += u64::from(length);
                });
            }
            Ok(())
        })?;
        failed?;
        writer.flush().with_context(context)?;
        drop(writer);
        places.sort_unstable_by_key(|(age, place, _)| (std::cmp::Reverse(*age), *place));
        Ok(Self { file, places })
    }

    fn each(&self, mut visit: impl FnMut(HostRow) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let mut text = Vec::new();
        for (_, place, length) in &self.places {
            text.resize(*length as usize, 0);
            self.file
                .read_exact_at(&mut text, *place)
                .context("reading the hosts again")?;
            visit(import_host(&text)?)?;
        }
        Ok(())
    }
}
