//! A connection to one server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use async_nats::jetstream::{self, Context, context};
use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event, ServerAddr, ServerError};
use tokio::sync::broadcast::{self, error::RecvError};

use crate::bucket::Bucket;
use crate::fault::{Fault, Kind};
use crate::names::Name;
use crate::pull::BATCH;
use crate::relay::Relay;
use crate::settings::{Checked, Secret};

/// Events that wait to be looked at; more are of no use.
const EVENTS: usize = 32;
/// Messages of a subscription that wait to be read: those of one request.
const MESSAGES: usize = 2 * BATCH;
/// Largest messages that a server may let through, bytes: as large as its authors advise at most. Those
/// beyond what was asked for end the connection (`filter.rs`).
const PAYLOAD_MAX: usize = 8 << 20;
/// No reconnection by the client library comes before the end of the session.
const RECONNECT_DELAY: Duration = Duration::from_secs(86_400);

/// Prefix of the JetStream API in accounts that import it, as [`crate::setup`] has it.
pub(crate) const IMPORTED: &str = "thalweg.API";

/// Errors of servers in an account without JetStream; the second one where the account is newer
/// than the server's start.
const NO_JETSTREAM_ERRORS: [&str; 2] = ["10039", "requested JetStream resource does not exist"];

/// A connection to one server, as one of two sees it. When it is lost, it is over: the next one is another [`Link`].
pub(crate) struct Link {
    pub server: String,
    pub client: Client,
    pub context: Context,
    events: broadcast::Receiver<Event>,
    relay: Arc<Relay>,
    timeout: Duration,
}

impl Link {
    /// Connects to this server.
    pub async fn connect(checked: &Checked, server: &ServerAddr) -> Result<Self, Fault> {
        let Checked {
            settings, secret, ..
        } = checked;
        let timeout = settings.pace.timeout;
        let name = public_address(server);
        let opening = Relay::open(settings, server, &name);
        // Names are looked up without a limit.
        let relay = match tokio::time::timeout(timeout * 2, opening).await {
            Ok(opened) => Arc::new(opened?),
            Err(_) => return Err(slow_fault(&name, "connection")),
        };
        let (sender, events) = broadcast::channel(EVENTS);
        let is_connected = AtomicBool::new(false);
        let mut options = ConnectOptions::new()
            .name(&settings.agent)
            // Other agents may not subscribe to this one's answers.
            .custom_inbox_prefix(inbox_prefix(&settings.agent))
            .connection_timeout(timeout)
            .request_timeout(Some(timeout))
            .ping_interval(settings.pace.ping)
            .client_capacity(64)
            .subscription_capacity(MESSAGES)
            // Only what the settings name: a server must not lead to others.
            .ignore_discovered_servers()
            .reconnect_delay_callback(move |_| match is_connected.swap(true, Relaxed) {
                false => Duration::ZERO,
                true => RECONNECT_DELAY,
            })
            .event_callback(move |event| {
                let sender = sender.clone();
                async move { drop(sender.send(event)) }
            });
        options = match secret {
            Secret::None => options,
            Secret::Seed(seed) => options.nkey(seed.clone()),
            Secret::Credentials(text) => options
                .credentials(text)
                .map_err(|why| Fault::new(Kind::Credentials, why))?,
        };
        let client = match options.connect(format!("nats://{}", relay.address)).await {
            Ok(client) => client,
            Err(error) => {
                let refused = matches!(
                    error.kind(),
                    ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication
                );
                // The relay knows why, unless the server said it.
                let known = relay.end_reason().filter(|_| !refused);
                return Err(known.unwrap_or_else(|| Fault::connect_error(&name, &error)));
            }
        };
        let found = client.server_info().max_payload;
        if found > PAYLOAD_MAX {
            let text = format_args!(
                "{name}: max_payload: found {found} bytes, expected at most {PAYLOAD_MAX}"
            );
            return Err(Fault::new(Kind::Size, text));
        }
        let context = jetstream_context("$JS.API", timeout, &client);
        Ok(Self {
            server: name,
            client,
            context,
            events,
            relay,
            timeout,
        })
    }

    /// Another handle of this connection, with its own timeout.
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self {
            server: self.server.clone(),
            client: self.client.clone(),
            context: jetstream_context("$JS.API", timeout, &self.client),
            events: self.events.resubscribe(),
            relay: Arc::clone(&self.relay),
            timeout,
        }
    }

    /// Waits for the end of the connection, or something that the server says.
    pub async fn wait_for_event(&mut self) -> Fault {
        loop {
            match self.events.recv().await {
                Ok(Event::ServerError(error)) => return self.server_fault(&error),
                Ok(Event::Disconnected | Event::Closed) | Err(RecvError::Closed) => {
                    return self.relay.end_reason().unwrap_or_else(|| {
                        let text = format_args!("{}: the connection was lost", self.server);
                        Fault::new(Kind::Unreachable, text)
                    });
                }
                // Only the address of a message is missing: the next look finds it.
                Ok(_) | Err(RecvError::Lagged(_)) => {}
            }
        }
    }

    fn server_fault(&self, error: &ServerError) -> Fault {
        let text = error.to_string();
        let kind = match text.to_lowercase() {
            lower if lower.contains("permissions violation") => Kind::Permission,
            lower if lower.contains("authorization") || lower.contains("authentication") => {
                Kind::Credentials
            }
            lower if lower.contains("maximum payload") => Kind::Size,
            _ => Kind::Server,
        };
        Fault::new(kind, format_args!("{}: {text}", self.server))
    }

    /// Runs an operation on a bucket; what the server says meanwhile, such as that it is not
    /// permitted, ends it at once: there would be no answer.
    pub async fn run_on_bucket<T, E>(
        &mut self,
        bucket: Bucket,
        operation: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Fault>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        tokio::select! {
            biased;
            done = operation => done.map_err(|error| {
                let error = error.into();
                Fault::bucket_error(bucket.name(), &*error)
            }),
            fault = self.wait_for_event() => Err(fault),
        }
    }

    /// As [`Link::run_on_bucket`], for what has no limit of its own.
    pub async fn run_with_timeout<T, E>(
        &mut self,
        bucket: Bucket,
        operation: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Fault>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        match tokio::time::timeout(self.timeout, self.run_on_bucket(bucket, operation)).await {
            Ok(done) => done,
            Err(_) => Err(slow_fault(&self.server, bucket.name())),
        }
    }

    /// The stream of a bucket, which is as expected.
    pub async fn open_bucket(&mut self, bucket: Bucket) -> Result<jetstream::stream::Info, Fault> {
        let context = self.context.clone();
        let stream = match self
            .run_on_bucket(bucket, context.get_stream(bucket.stream_name()))
            .await
        {
            Err(fault)
                if NO_JETSTREAM_ERRORS
                    .iter()
                    .any(|words| fault.text.contains(words)) =>
            {
                // The account has no JetStream; it may import that of another one.
                self.context = jetstream_context(IMPORTED, self.timeout, &self.client);
                let context = self.context.clone();
                self.run_on_bucket(bucket, context.get_stream(bucket.stream_name()))
                    .await?
            }
            opened => opened?,
        };
        let info = stream.cached_info();
        bucket.check_config(&info.config)?;
        Ok(info.clone())
    }
}

/// The API of JetStream under a name.
fn jetstream_context(prefix: &str, timeout: Duration, client: &Client) -> Context {
    context::ContextBuilder::new()
        .timeout(timeout)
        .ack_timeout(timeout)
        .api_prefix(prefix)
        .build(client.clone())
}

/// Prefix of the subjects to which an agent's answers are sent.
fn inbox_prefix(agent: &Name) -> String {
    format!("_INBOX.{agent}")
}

/// A server's address without anything secret.
fn public_address(server: &ServerAddr) -> String {
    format!("{}:{}", server.host(), server.port())
}

fn slow_fault(server: &str, what: &str) -> Fault {
    Fault::new(
        Kind::Slow,
        format_args!("{server}: {what}: no answer in time"),
    )
}
