-- The journal's tables. Lock order everywhere: threads (by id), then work (by thread_id).

create schema if not exists actum;

-- How far tests have moved the time ahead; one row. Production never touches it.
create table actum.clock (
    only_row boolean primary key default true check (only_row),
    ahead interval not null default '0'
);
insert into actum.clock default values;

create sequence actum.fences;

-- The hot projection: one small row per Thread, written in the transaction that appends its events.
create table actum.threads (
    id uuid primary key,
    namespace text not null,
    key text not null,
    workflow text not null,
    workflow_version text not null,
    queue text not null,
    priority smallint not null,
    state text not null,
    reason text not null default '',
    version integer not null,
    head bytea not null,
    owner text not null,
    principal text not null,
    created_at timestamptz not null,
    updated_at timestamptz not null,
    deadline_at timestamptz not null,
    wake_at timestamptz,
    wake_for text not null default '',
    constraint terminal_threads_sleep check
        ((wake_at is null) = (state in ('completed', 'failed', 'expired', 'cancelled')))
) with (fillfactor = 70);
create unique index threads_by_key on actum.threads (namespace, key);
create index threads_by_wake on actum.threads (wake_at) where wake_at is not null;
create index threads_by_state on actum.threads (state, id)
    where state not in ('completed', 'running', 'waiting');

-- Append-only. `link` stands on the last event of each committed block:
-- sha256(previous head || sha256(texts of the block) || time in microseconds || first number).
create table actum.events (
    thread_id uuid not null,
    seq integer not null,
    type text not null,
    name text not null,
    at timestamptz not null,
    actor text not null,
    body json not null,
    link bytea,
    primary key (thread_id, seq)
) partition by range (thread_id);
create table actum.events_default partition of actum.events default;

-- Open, claimable work; a row leaves when nothing is to be done now.
create table actum.work (
    thread_id uuid primary key,
    queue text not null,
    workflow text not null,
    workflow_version text not null,
    priority smallint not null,
    ready_at timestamptz not null,
    holder uuid,
    fence bigint not null,
    crashes integer not null default 0
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0);
create index work_ready on actum.work (queue, priority, ready_at) where holder is null;
create index work_held on actum.work (holder) where holder is not null;

-- Steps that touch the world, or that wait for another attempt. Others live in their events alone.
create table actum.steps (
    thread_id uuid not null,
    step_id text not null,
    effect_class text not null,
    state text not null,
    digest text not null,
    effect_key text not null,
    attempts integer not null,
    owner text not null,
    updated_at timestamptz not null,
    primary key (thread_id, step_id)
) with (fillfactor = 70);
create unique index steps_by_effect_key on actum.steps (effect_key) where effect_key <> '';
create index steps_in_doubt on actum.steps (state, updated_at)
    where state in ('dispatched', 'effect_unknown', 'needs_resolution');

-- Every command and its one disposition; kept for the dedup key's retention.
create table actum.commands (
    namespace text not null,
    key text not null,
    kind text not null,
    subject text not null,
    fingerprint bytea not null,
    thread_id uuid not null,
    principal text not null,
    received_at timestamptz not null,
    disposition text not null,
    primary key (namespace, key)
);

-- One row per worker process incarnation; a claim whose row is missing or expired is expired.
create table actum.workers (
    id uuid primary key,
    host text not null,
    pid integer not null,
    queues text[] not null,
    definitions text[] not null,
    started_at timestamptz not null,
    beat_at timestamptz not null,
    expires_at timestamptz not null
);

-- What behaviour was pinned: the definitions that workers and producers have shown.
create table actum.manifests (
    workflow text not null,
    version text not null,
    owner text not null,
    queue text not null,
    deadline_seconds double precision not null,
    on_upgrade text not null,
    digest text not null,
    body json not null,
    seen_at timestamptz not null,
    primary key (workflow, version)
);

create table actum.duties (
    name text primary key,
    succeeded_at timestamptz not null,
    result json not null
);
