//! Lists of hosts.

use thalweg_control::batch::Cursor;
use thalweg_control::system;
use thalweg_learner::HostKey;

use super::best::{BestQuery, Wanted};
use crate::api::answer::Answer;
use crate::feature::{Context, Listing, PageMaker};
use crate::kernel::HostBatch;
use crate::store::{HostRow, export_head, export_host};

/// Hosts per page of the best hosts.
const BEST_PAGE: usize = 64;

/// Hosts with their estimates: all, or the best by a measure.
pub fn hosts(query: &BestQuery) -> Answer<Listing> {
    let pages = match query.wanted()? {
        Some(wanted) => best_hosts(wanted),
        None => all_hosts(|batch, context| host_items(context, batch)),
    };
    Ok(Listing {
        head: "{\"hosts\":[".to_owned(),
        separator: ",",
        tail: "]}",
        pages,
    })
}

/// All hosts; `items` makes those of a page.
fn all_hosts(
    items: impl Fn(&HostBatch, &Context<'_>) -> anyhow::Result<Vec<String>> + Send + 'static,
) -> PageMaker {
    let mut at: Option<Cursor> = None;
    Box::new(move |context| {
        let (batch, next) = context.kernel.hosts_page(at.as_ref())?;
        at = next;
        Ok((items(&batch, context)?, at.is_some()))
    })
}

/// The wanted hosts, best first. A host that is gone by its turn is left out.
fn best_hosts(wanted: Wanted) -> PageMaker {
    let mut left: Option<Vec<HostKey>> = None;
    Box::new(move |context| {
        let mut keys = match left.take() {
            None => wanted.keys(context)?,
            Some(rest) => rest,
        };
        let rest = keys.split_off(keys.len().min(BEST_PAGE));
        let mut batch = Vec::with_capacity(keys.len());
        for key in keys {
            batch.extend(context.kernel.host(&key)?.map(|host| (key, host)));
        }
        let more = !rest.is_empty();
        left = Some(rest);
        Ok((host_items(context, &batch)?, more))
    })
}

fn host_items(context: &Context<'_>, batch: &HostBatch) -> anyhow::Result<Vec<String>> {
    let table = context.kernel.arms()?;
    let presenter = context.presenter(&table);
    let items = batch
        .iter()
        .map(|(key, host)| serde_json::to_string(&presenter.host(key, host)));
    Ok(items.collect::<Result<_, _>>()?)
}

/// The document of all host records.
pub fn export(context: &Context<'_>) -> anyhow::Result<Listing> {
    let began_ns = system::monotonic_ns();
    let pages = all_hosts(move |batch, context| {
        let arms = context.kernel.arms()?;
        let items = batch.iter().map(|(key, host)| {
            let row = HostRow::new(*key, host, began_ns, |index| arms.name(index));
            export_host(&row)
        });
        Ok(items.collect::<Result<_, _>>()?)
    });
    Ok(Listing {
        head: export_head(&context.records.document_header())? + "\n",
        separator: ",\n",
        tail: "\n]}\n",
        pages,
    })
}
