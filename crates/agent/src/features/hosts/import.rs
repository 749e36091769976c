//! Import of documents of host records.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::Context as _;
use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::api::answer::{Answer, Failure};
use crate::feature::{BodyBounds, Context};
use crate::kernel::Kernel;
use crate::store::{
    HOST_MAX_BYTES, HostRow, ImportError, check_document, each_host, export_host, import_host,
};

/// Bounds of a document.
pub fn bounds(kernel: &Kernel) -> BodyBounds {
    let bytes = u64::from(kernel.setup().hosts_max) * HOST_MAX_BYTES;
    BodyBounds {
        bytes,
        too_large: format!("the document has more than {bytes} bytes, the most for this hosts.max"),
        busy: "another import is going on; try again when it is over",
    }
}

/// Writes the records of a document to the kernel. The whole document is checked before any record
/// is used.
pub fn import(file: &File, context: &Context<'_>) -> Answer<Value> {
    let bad = |error: ImportError| Failure(StatusCode::BAD_REQUEST, error.to_string());
    let reader = || -> std::io::Result<_> {
        let mut file = file;
        file.rewind()?;
        Ok(BufReader::new(file))
    };
    let header = check_document(reader).map_err(bad)?;
    if header.mode != context.mode() {
        let text = format!(
            "the file holds records of mode {}, this agent runs {}",
            header.mode.name(),
            context.mode().name()
        );
        return Err(Failure(StatusCode::CONFLICT, text));
    }
    let document = reader().context("reading the document again")?;
    let sorted = Sorted::of(document, context.state)?;
    // The longest unseen first: if there is no room for all, these are evicted.
    let restored = context.records.import(&header, &mut sorted.rows())?;
    Ok(json!({ "imported": restored.restored, "left_out": restored.left_out }))
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

    fn rows(&self) -> impl Iterator<Item = anyhow::Result<HostRow>> {
        self.places.iter().map(|(_, place, length)| {
            let mut text = vec![0; *length as usize];
            self.file
                .read_exact_at(&mut text, *place)
                .context("reading the hosts again")?;
            Ok(import_host(&text)?)
        })
    }
}
