//! Web traffic: pages of several objects.

use std::fmt;

use serde::{Deserialize, Serialize};
use thalweg_units::reader::Table;

use super::sizes::Sizes;
use crate::units::{Delay, Probability};
use crate::worker::HEAD;

/// Most objects of a page, and most connections that it has at once.
const MOST_OBJECTS: u32 = 100;
const MOST_AT_ONCE: u32 = 20;

/// Pages that are asked for at random times (Poisson), whether or not earlier ones are done. The
/// first object of a page comes alone, the others over several connections, one after the other on
/// each, as with HTTP/1.1.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Web {
    /// Server whose programs send.
    #[serde(skip_serializing_if = "WebServer::is_worker")]
    pub server: WebServer,
    /// The mean time between two pages of a host.
    pub every: Delay,
    /// The mean number of objects of a page, geometric.
    pub objects: u32,
    /// Connections that a page has at once, at most.
    pub at_once: u32,
    /// Share of the pages whose connections stay open for later pages.
    pub persistent: Probability,
    /// Bytes of each object.
    #[serde(flatten)]
    pub sizes: Sizes,
}

/// The programs at both ends of web traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WebServer {
    /// The laboratory's worker, which opens the connections that it sends over.
    #[default]
    Worker,
    /// nginx, which curl at the other end asks: a curl for each page.
    Nginx,
}

impl WebServer {
    /// The programs that it needs, with the packages that have them.
    pub(crate) fn needed_programs(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Worker => &[],
            Self::Nginx => &[("nginx", "nginx"), ("curl", "curl")],
        }
    }

    fn is_worker(&self) -> bool {
        *self == Self::Worker
    }
}

impl Web {
    /// Takes the keys of the kind.
    pub(super) fn from_table(table: &mut Table<'_>) -> Self {
        let server = table.value("server").unwrap_or_default();
        let half = Probability::from_fraction(0.5).unwrap_or_default();
        let every = table.value("every").unwrap_or(Delay::from_us(2_000_000));
        if every == Delay::ZERO {
            table.wrong("every", every.to_string(), "a time between pages, above 0");
        }
        let persistent: Option<Probability> = table.value("persistent");
        if server == WebServer::Nginx && persistent.is_some() {
            let expected = "none beside `server = \"nginx\"`: each page has its own curl";
            table.wrong("persistent", "it", expected);
        }
        Self {
            server,
            every,
            objects: table.count("objects", 1..=MOST_OBJECTS).unwrap_or(6),
            // As many as browsers have to a host.
            at_once: table.count("at_once", 1..=MOST_AT_ONCE).unwrap_or(6),
            persistent: persistent.unwrap_or(half),
            sizes: Sizes::from_table(table, HEAD as u64),
        }
    }
}

impl fmt::Display for Web {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            every,
            objects,
            sizes,
            at_once,
            ..
        } = self;
        write!(
            f,
            "pages every {every} on average, of {objects} objects on average ({sizes}), over up to \
             {at_once} connections"
        )?;
        match self.server {
            WebServer::Worker => write!(f, ", {} of which stay open", self.persistent),
            WebServer::Nginx => write!(f, ", from nginx to curl"),
        }
    }
}
