-- The verbs that carry the guarantees. Each takes its locks first and then reads, so that in
-- READ COMMITTED every later statement of the function sees what the lock protects.

create or replace function actum.now() returns timestamptz language sql stable as
$$ select statement_timestamp() + (select ahead from actum.clock) $$;

-- Moves time ahead for tests and demonstrations. Leases keep their remaining length.
create or replace function actum.advance(p_by interval) returns timestamptz language plpgsql as
$$
begin
    update actum.clock set ahead = ahead + p_by;
    update actum.workers set expires_at = expires_at + p_by;
    return actum.now();
end
$$;

create or replace function actum.micros(p_at timestamptz) returns bigint language sql immutable as
$$ select (extract(epoch from p_at) * 1000000)::bigint $$;

-- One link of a Thread's hash chain.
create or replace function actum.link(p_head bytea, p_text text, p_at timestamptz, p_first integer)
returns bytea language sql immutable as
$$
    select sha256(p_head || sha256(convert_to(p_text, 'UTF8'))
                  || int8send(actum.micros(p_at)) || int4send(p_first))
$$;

-- Appends one event for an outsider (signal, timer, rescue, owner). The caller holds the Thread's lock.
create or replace function actum.append(
    p_thread uuid, p_type text, p_name text, p_actor text, p_body json
) returns integer language plpgsql as
$$
declare
    t record;
    moment timestamptz := actum.now();
    next_head bytea;
begin
    select version, head into strict t from actum.threads where id = p_thread for no key update;
    next_head := actum.link(
        t.head, concat_ws(E'\x1f', p_type, p_name, p_actor, p_body::text), moment, t.version + 1);
    insert into actum.events (thread_id, seq, type, name, at, actor, body, link)
    values (p_thread, t.version + 1, p_type, p_name, moment, p_actor, p_body, next_head);
    update actum.threads
       set version = t.version + 1, head = next_head, updated_at = moment
     where id = p_thread;
    return t.version + 1;
end
$$;

-- Makes a Thread's work claimable now, unless somebody holds it: a holder notices the new version.
create or replace function actum.ready(p_thread uuid) returns void language sql as
$$
    insert into actum.work (thread_id, queue, workflow, workflow_version, priority, ready_at, fence)
    select id, queue, workflow, workflow_version, priority, actum.now(), nextval('actum.fences')
      from actum.threads where id = p_thread
    on conflict (thread_id) do update set ready_at = least(work.ready_at, excluded.ready_at)
      where work.holder is null
$$;

-- Takes start commands in bulk. The insert into commands decides alone who is first: a second request
-- with the same key waits for the first one's commit and then reads it. Rows are taken in key order, so
-- that two batches with overlapping keys can't lock each other out.
create or replace function actum.submit(
    p_thread uuid[], p_namespace text[], p_key text[], p_workflow text[], p_version text[],
    p_queue text[], p_priority smallint[], p_owner text[], p_deadline_seconds double precision[],
    p_principal text[], p_manifest text[], p_input text[]
) returns table (n bigint, verdict text, thread_id uuid, fingerprint text, stored_fingerprint text,
                 stored_subject text)
language plpgsql as
$$
#variable_conflict use_column
declare
    moment timestamptz := actum.now();
    fresh uuid[];
begin
    with put as (
        insert into actum.commands (namespace, key, kind, subject, fingerprint, thread_id, principal,
                                    received_at, disposition)
        select i.namespace, i.key, 'start', i.workflow,
               sha256(convert_to(i.workflow || E'\x1f' || (i.input::jsonb)::text, 'UTF8')),
               i.thread, i.principal, moment, 'accepted'
          from unnest(p_thread, p_namespace, p_key, p_workflow, p_principal, p_input)
               as i (thread, namespace, key, workflow, principal, input)
         order by i.namespace, i.key
        on conflict do nothing
        returning commands.thread_id
    ) select coalesce(array_agg(put.thread_id), '{}') into fresh from put;

    with item as (
        select i.*, json_build_object(
                   'workflow', i.workflow, 'version', i.version, 'input', i.input::json,
                   'deadline_seconds', i.deadline_seconds, 'owner', i.owner, 'manifest', i.manifest,
                   'principal', i.principal, 'namespace', i.namespace, 'key', i.key)::text as body
          from unnest(p_thread, p_namespace, p_key, p_workflow, p_version, p_queue, p_priority,
                      p_owner, p_deadline_seconds, p_principal, p_manifest, p_input)
               as i (thread, namespace, key, workflow, version, queue, priority, owner,
                     deadline_seconds, principal, manifest, input)
         where i.thread = any (fresh)
    ), linked as (
        select item.*, actum.link(uuid_send(thread), concat_ws(
                   E'\x1f', 'thread.started', '', principal, body), moment, 1) as link
          from item
    ), event as (
        insert into actum.events (thread_id, seq, type, name, at, actor, body, link)
        select thread, 1, 'thread.started', '', moment, principal, body::json, link from linked
    ), open as (
        insert into actum.work (thread_id, queue, workflow, workflow_version, priority, ready_at, fence)
        select thread, queue, workflow, version, priority, moment, nextval('actum.fences') from linked
    )
    insert into actum.threads (id, namespace, key, workflow, workflow_version, queue, priority, state,
                               version, head, owner, principal, created_at, updated_at, deadline_at,
                               wake_at, wake_for)
    select thread, namespace, key, workflow, version, queue, priority, 'running', 1, link, owner,
           principal, moment, moment, moment + make_interval(secs => deadline_seconds),
           moment + make_interval(secs => deadline_seconds), 'deadline'
      from linked;

    return query
    select i.n,
           case when c.thread_id = i.thread then 'accepted'
                when c.kind = 'start' and c.fingerprint = f.fingerprint then 'duplicate'
                else 'conflict' end,
           c.thread_id, encode(f.fingerprint, 'hex'), encode(c.fingerprint, 'hex'), c.subject
      from unnest(p_thread, p_namespace, p_key, p_workflow, p_input) with ordinality
           as i (thread, namespace, key, workflow, input, n)
      cross join lateral (
           select sha256(convert_to(i.workflow || E'\x1f' || (i.input::jsonb)::text, 'UTF8'))
      ) as f (fingerprint)
      join actum.commands c on c.namespace = i.namespace and c.key = i.key
     order by i.n;
end
$$;

-- Takes one signal. The command and its event are one commit; the Thread becomes claimable.
create or replace function actum.signal(
    p_thread uuid, p_key text, p_name text, p_body text, p_principal text
) returns table (verdict text, seq integer, fingerprint text, stored_fingerprint text)
language plpgsql as
$$
#variable_conflict use_column
declare
    t record;
    c record;
    print bytea := sha256(convert_to(
        concat_ws(E'\x1f', p_thread::text, p_name, (p_body::jsonb)::text), 'UTF8'));
    position integer;
begin
    select id, namespace, state into t from actum.threads where id = p_thread for no key update;
    if not found then
        return query select 'missing', null::integer, null::text, null::text;
        return;
    end if;
    insert into actum.commands (namespace, key, kind, subject, fingerprint, thread_id, principal,
                                received_at, disposition)
    values (t.namespace, p_key, 'signal', p_name, print, p_thread, p_principal, actum.now(),
            case when t.state in ('completed', 'failed', 'expired', 'cancelled')
                 then 'refused: ended' else 'accepted' end)
    on conflict do nothing;
    if not found then
        select * into c from actum.commands where namespace = t.namespace and key = p_key;
        return query select case when c.kind = 'signal' and c.fingerprint = print
                                 then 'duplicate' else 'conflict' end,
                            null::integer, encode(print, 'hex'), encode(c.fingerprint, 'hex');
        return;
    end if;
    if t.state in ('completed', 'failed', 'expired', 'cancelled') then
        return query select 'ended', null::integer, encode(print, 'hex'), encode(print, 'hex');
        return;
    end if;
    position := actum.append(p_thread, 'signal.received', p_name, p_principal,
        json_build_object('name', p_name, 'body', p_body::json, 'command', p_key));
    if t.state = 'waiting' then
        update actum.threads set state = 'running', reason = '', wake_at = deadline_at,
               wake_for = 'deadline' where id = p_thread;
    end if;
    if t.state in ('waiting', 'running') then
        perform actum.ready(p_thread);
    end if;
    return query select 'accepted', position, encode(print, 'hex'), encode(print, 'hex');
end
$$;

-- Claims up to p_max ready Threads for a living incarnation. SKIP LOCKED: two claimers never wait for
-- each other and never get the same row; each claim takes a fence that has never been used before.
-- A Thread that lost its worker before is a suspect: a worker runs it alone, so that a step which kills
-- every process can't make its neighbours look guilty.
create or replace function actum.claim(
    p_holder uuid, p_queue text, p_definitions text[], p_max integer, p_suspects boolean
) returns table (thread_id uuid, fence bigint, crashes integer, workflow text, workflow_version text,
                 claimed_at timestamptz)
language sql as
$$
    with due as (
        select w.thread_id from actum.work w
         where w.queue = p_queue and w.holder is null and w.ready_at <= actum.now()
           and w.workflow || '@' || w.workflow_version = any (p_definitions)
           and (p_suspects is null or (w.crashes > 0) = p_suspects)
           and exists (select from actum.workers
                        where id = p_holder and expires_at > actum.now())
         order by w.priority, w.ready_at
         limit p_max
         for update skip locked
    )
    update actum.work w set holder = p_holder, fence = nextval('actum.fences')
      from due where w.thread_id = due.thread_id
    returning w.thread_id, w.fence, w.crashes, w.workflow, w.workflow_version, actum.now()
$$;

-- Commits one batch: at most one block per Thread. Facts are appended whenever the fence holds;
-- decisions only if the Thread still has the version on which they were made. A block whose fence is
-- old changes nothing but is kept as late evidence. Outcomes, block by block:
-- committed · conflict (facts kept, decisions dropped) · ended (likewise) · fenced · missing.
create or replace function actum.commit(
    p_thread uuid[], p_fence bigint[], p_expected integer[], p_state text[], p_reason text[],
    p_wake_seconds double precision[], p_wake_for text[], p_work text[],
    e_block integer[], e_type text[], e_name text[], e_actor text[], e_body text[], e_fact boolean[],
    s_block integer[], s_stage integer[], s_step text[], s_class text[], s_state text[],
    s_digest text[], s_key text[], s_attempts integer[], s_owner text[], s_fact boolean[]
) returns table (block integer, outcome text, version_before integer, version_after integer,
                 recorded_at timestamptz)
language plpgsql as
$$
#variable_conflict use_column
declare
    moment timestamptz := actum.now();
    results jsonb;
    late record;
begin
    perform 1 from actum.threads t where t.id = any (p_thread) order by t.id for no key update;
    perform 1 from actum.work w where w.thread_id = any (p_thread) order by w.thread_id for update;

    with judged as materialized (
        select b.n::integer as block, b.thread, b.state, b.reason, b.wake_seconds, b.wake_for, b.work,
               t.version, t.head,
               case when t.id is null then 'missing'
                    when w.fence is distinct from b.fence or w.holder is null then 'fenced'
                    when t.state in ('completed', 'failed', 'expired', 'cancelled') then 'ended'
                    when b.expected <> t.version then 'conflict'
                    else 'committed' end as outcome
          from unnest(p_thread, p_fence, p_expected, p_state, p_reason, p_wake_seconds, p_wake_for,
                      p_work) with ordinality
               as b (thread, fence, expected, state, reason, wake_seconds, wake_for, work, n)
          left join actum.threads t on t.id = b.thread
          left join actum.work w on w.thread_id = b.thread
    ), kept as (
        select j.block, j.thread, j.version, j.head, e.type, e.name, e.actor, e.body,
               row_number() over (partition by j.block order by e.ord)::integer as k
          from unnest(e_block, e_type, e_name, e_actor, e_body, e_fact) with ordinality
               as e (block, type, name, actor, body, fact, ord)
          join judged j on j.block = e.block
         where j.outcome = 'committed' or (j.outcome in ('conflict', 'ended') and e.fact)
    ), links as (
        select block, count(*)::integer as n,
               actum.link(min(head::text)::bytea,
                          string_agg(concat_ws(E'\x1f', type, name, actor, body), E'\x1e' order by k),
                          moment, min(version) + 1) as link
          from kept group by block
    ), put as (
        insert into actum.events (thread_id, seq, type, name, at, actor, body, link)
        select kept.thread, kept.version + kept.k, kept.type, kept.name, moment, kept.actor,
               kept.body::json, case when kept.k = links.n then links.link end
          from kept join links using (block)
    ), moved as (
        update actum.threads t
           set version = t.version + coalesce(links.n, 0),
               head = coalesce(links.link, t.head),
               updated_at = moment,
               state = case when j.outcome = 'committed' then coalesce(j.state, t.state)
                            else t.state end,
               reason = case when j.outcome = 'committed' then coalesce(j.reason, t.reason)
                             else t.reason end,
               wake_for = case when j.outcome = 'committed' and j.wake_for is not null
                               then j.wake_for else t.wake_for end,
               wake_at = case
                   when t.wake_at is null then null
                   when j.outcome <> 'committed' or j.state is null then t.wake_at
                   when j.state in ('completed', 'failed', 'expired', 'cancelled') then null
                   else least(t.deadline_at,
                              moment + make_interval(secs => j.wake_seconds)) end
          from judged j left join links on links.block = j.block
         where t.id = j.thread and j.outcome in ('committed', 'conflict', 'ended')
           and (links.n is not null or j.state is not null)
    ), closed as (
        delete from actum.work w using judged j
         where w.thread_id = j.thread and j.outcome in ('committed', 'ended') and j.work = 'done'
    ), released as (
        update actum.work w
           set holder = case when j.work = 'again' then null else w.holder end,
               crashes = case when j.work = 'again' and j.state is null then w.crashes else 0 end,
               ready_at = case when j.work = 'again' then moment else w.ready_at end
          from judged j
         where w.thread_id = j.thread and j.outcome in ('committed', 'conflict', 'ended')
           and (j.work = 'again' or (w.crashes > 0 and j.work = 'keep'
                and exists (select from links where links.block = j.block)))
    )
    select jsonb_agg(jsonb_build_object('block', j.block, 'outcome', j.outcome,
               'before', j.version, 'after', j.version + coalesce(links.n, 0)) order by j.block)
      into results
      from judged j left join links on links.block = j.block;

    perform actum.move_steps(p_thread, results, s_block, s_stage, s_step, s_class, s_state, s_digest,
                             s_key, s_attempts, s_owner, s_fact, moment);
    for late in
        select p_thread[(r->>'block')::integer] as thread, min(p_fence[(r->>'block')::integer]) as fence,
               json_agg(json_build_object('type', e.type, 'name', e.name, 'body', e.body::json)
                        order by e.ord) as events
          from jsonb_array_elements(results) r
          join unnest(e_block, e_type, e_name, e_body, e_fact) with ordinality
               as e (block, type, name, body, fact, ord) on e.block = (r->>'block')::integer
         where r->>'outcome' = 'fenced' and e.fact
         group by 1
    loop
        perform actum.append(late.thread, 'evidence.late', '', 'stale worker',
                             json_build_object('fence', late.fence, 'events', late.events));
    end loop;

    return query
    select (r->>'block')::integer, r->>'outcome', (r->>'before')::integer, (r->>'after')::integer,
           moment
      from jsonb_array_elements(results) r;
end
$$;

-- Writes the steps projection. A step that moves twice in one block moves in two stages, so that the
-- trigger sees each move by itself.
create or replace function actum.move_steps(
    p_thread uuid[], p_results jsonb, s_block integer[], s_stage integer[], s_step text[],
    s_class text[], s_state text[], s_digest text[], s_key text[], s_attempts integer[],
    s_owner text[], s_fact boolean[], p_moment timestamptz
) returns void language plpgsql as
$$
declare
    this_stage integer;
    last_stage integer;
begin
    if coalesce(cardinality(s_block), 0) = 0 then
        return;
    end if;
    select max(x) into last_stage from unnest(s_stage) x;
    for this_stage in 1 .. last_stage loop
        -- Not an upsert: its insert trigger would judge the proposed row though the row is only moved.
        with move as (
            select p_thread[s.block] as thread, s.*
              from unnest(s_block, s_stage, s_step, s_class, s_state, s_digest, s_key, s_attempts,
                          s_owner, s_fact)
                   as s (block, stage, step, class, state, digest, key, attempts, owner, fact)
              join jsonb_array_elements(p_results) r on (r->>'block')::integer = s.block
             where s.stage = this_stage
               and (r->>'outcome' = 'committed' or (r->>'outcome' in ('conflict', 'ended') and s.fact))
        ), moved as (
            update actum.steps x
               set state = m.state, attempts = m.attempts, digest = m.digest, effect_key = m.key,
                   updated_at = p_moment
              from move m where x.thread_id = m.thread and x.step_id = m.step
            returning x.thread_id, x.step_id
        )
        insert into actum.steps (thread_id, step_id, effect_class, state, digest, effect_key, attempts,
                                 owner, updated_at)
        select m.thread, m.step, m.class, m.state, m.digest, m.key, m.attempts, m.owner, p_moment
          from move m
         where not exists (select from moved where moved.thread_id = m.thread
                                               and moved.step_id = m.step);
    end loop;
end
$$;

-- Takes back the claims of incarnations that are expired or missing. A step that had been dispatched
-- becomes effect_unknown; the fence moves on at once, so that the old holder can commit nothing. A
-- Thread that loses its worker again and again without progress is parked with its owner.
create or replace function actum.rescue(p_max integer, p_crashes_max integer)
returns table (thread_id uuid, crashes integer, parked boolean) language plpgsql as
$$
#variable_conflict use_column
declare
    candidate record;
    w record;
    s record;
    parks boolean;
begin
    for candidate in
        select x.thread_id from actum.work x
         where x.holder is not null and not exists (
               select from actum.workers k where k.id = x.holder and k.expires_at > actum.now())
         order by x.thread_id limit p_max
    loop
        perform 1 from actum.threads t where t.id = candidate.thread_id
            for no key update skip locked;
        continue when not found;
        select x.thread_id, x.crashes into w from actum.work x
         where x.thread_id = candidate.thread_id and x.holder is not null and not exists (
               select from actum.workers k where k.id = x.holder and k.expires_at > actum.now())
         for update;
        continue when not found;
        for s in
            select x.step_id from actum.steps x
             where x.thread_id = w.thread_id and x.state = 'dispatched'
        loop
            perform actum.append(w.thread_id, 'effect.unknown', s.step_id, 'reconciliation',
                                 json_build_object('reason', 'worker lost'));
            update actum.steps set state = 'effect_unknown', updated_at = actum.now()
             where thread_id = w.thread_id and step_id = s.step_id;
        end loop;
        parks := w.crashes + 1 > p_crashes_max;
        if parks and exists (select from actum.threads t
                              where t.id = w.thread_id and t.state = 'running') then
            perform actum.append(w.thread_id, 'thread.halted', '', 'reconciliation',
                json_build_object('reason', format('worker lost %s times without progress',
                                                   w.crashes + 1)));
            update actum.threads t set state = 'needs_resolution',
                   reason = format('worker lost %s times without progress', w.crashes + 1)
             where t.id = w.thread_id;
            delete from actum.work x where x.thread_id = w.thread_id;
        else
            update actum.work x
               set holder = null, fence = nextval('actum.fences'), crashes = x.crashes + 1,
                   ready_at = actum.now() + make_interval(secs => least(60, power(2, x.crashes) - 1))
             where x.thread_id = w.thread_id;
        end if;
        thread_id := w.thread_id; crashes := w.crashes + 1; parked := parks;
        return next;
    end loop;
end
$$;

-- Fires due timers as events. Threads that a worker holds are left to it: a turn gives way by itself
-- when its deadline has passed.
create or replace function actum.fire_timers(p_max integer, p_resolution interval)
returns table (thread_id uuid, timer text) language plpgsql as
$$
#variable_conflict use_column
declare
    t record;
begin
    for t in
        select x.id from actum.threads x where x.wake_at <= actum.now() order by x.wake_at limit p_max
    loop
        select x.* into t from actum.threads x
         where x.id = t.id and x.wake_at <= actum.now() for no key update skip locked;
        continue when not found;
        perform 1 from actum.work w where w.thread_id = t.id and w.holder is not null for update;
        continue when found;
        if t.deadline_at <= actum.now() then
            perform actum.pass_deadline(t.id, t.state, p_resolution);
            timer := 'deadline';
        else
            perform actum.append(t.id, 'timer.fired', t.wake_for, 'clock',
                                 json_build_object('timer', t.wake_for, 'due', t.wake_at));
            update actum.threads x set state = 'running', reason = '', wake_at = x.deadline_at,
                   wake_for = 'deadline' where x.id = t.id;
            perform actum.ready(t.id);
            timer := t.wake_for;
        end if;
        thread_id := t.id;
        return next;
    end loop;
end
$$;

-- A deadline ends a Thread. If an effect is in doubt the owner gets one more window first: nothing
-- is called failed that may have happened.
create or replace function actum.pass_deadline(p_thread uuid, p_state text, p_resolution interval)
returns void language plpgsql as
$$
declare
    s record;
    doubt json;
begin
    select json_agg(step_id order by step_id) into doubt from actum.steps
     where thread_id = p_thread and state in ('dispatched', 'effect_unknown', 'needs_resolution');
    for s in select step_id, owner from actum.steps
              where thread_id = p_thread and state = 'effect_unknown' order by step_id
    loop
        perform actum.append(p_thread, 'resolution.required', s.step_id, 'clock',
            json_build_object('owner', s.owner, 'reason', 'the deadline passed'));
        update actum.steps set state = 'needs_resolution', updated_at = actum.now()
         where thread_id = p_thread and step_id = s.step_id;
    end loop;
    if doubt is not null and p_state <> 'needs_resolution' then
        perform actum.append(p_thread, 'deadline.passed', '', 'clock',
                             json_build_object('in_doubt', doubt, 'until', actum.now() + p_resolution));
        update actum.threads set state = 'needs_resolution', reason = 'the deadline passed',
               deadline_at = actum.now() + p_resolution, wake_at = actum.now() + p_resolution,
               wake_for = 'deadline' where id = p_thread;
    else
        for s in select step_id from actum.steps
                  where thread_id = p_thread and state in ('needs_resolution', 'authorized')
                  order by step_id
        loop
            perform actum.append(p_thread, 'step.expired', s.step_id, 'clock', '{}');
            update actum.steps set state = 'expired', updated_at = actum.now()
             where thread_id = p_thread and step_id = s.step_id;
        end loop;
        perform actum.append(p_thread, 'thread.expired', '', 'clock',
                             json_build_object('reason', 'the deadline passed'));
        update actum.threads set state = 'expired', reason = 'the deadline passed', wake_at = null
         where id = p_thread;
    end if;
    delete from actum.work where thread_id = p_thread;
end
$$;

-- An owner settles a step: what the world shows is confirmed, absent (try again) or failed.
create or replace function actum.resolve(
    p_thread uuid, p_step text, p_decision text, p_actor text, p_reason text, p_result text
) returns text language plpgsql as
$$
declare
    t record;
    stands text;
begin
    select id, state into t from actum.threads where id = p_thread for no key update;
    if not found then
        return 'missing';
    end if;
    if t.state <> 'needs_resolution' then
        return 'not needed';
    end if;
    if p_step <> '' then
        select state into stands from actum.steps where thread_id = p_thread and step_id = p_step;
        if stands is distinct from 'needs_resolution' then
            return 'no such step';
        end if;
        perform actum.append(p_thread, 'resolution.' || p_decision, p_step, p_actor,
            json_build_object('actor', p_actor, 'reason', p_reason, 'result', p_result::json));
        update actum.steps set updated_at = actum.now(),
               state = case p_decision when 'confirmed' then 'effect_confirmed'
                                       when 'absent' then 'authorized' else 'failed' end
         where thread_id = p_thread and step_id = p_step;
    end if;
    perform actum.append(p_thread, 'thread.resumed', '', p_actor,
                         json_build_object('actor', p_actor, 'reason', p_reason));
    update actum.threads set state = 'running', reason = '', wake_at = deadline_at,
           wake_for = 'deadline' where id = p_thread;
    perform actum.ready(p_thread);
    return 'resumed';
end
$$;

-- Blocked Threads go on when a worker shows a definition of their version again.
create or replace function actum.unblock(p_definitions text[], p_max integer)
returns integer language plpgsql as
$$
declare
    t record;
    n integer := 0;
begin
    for t in select id from actum.threads
              where state = 'blocked' and workflow || '@' || workflow_version = any (p_definitions)
              order by id limit p_max for no key update skip locked
    loop
        perform actum.append(t.id, 'thread.unblocked', '', 'worker', '{}');
        update actum.threads set state = 'running', reason = '' where id = t.id;
        perform actum.ready(t.id);
        n := n + 1;
    end loop;
    return n;
end
$$;

-- Partitions by month of the Thread's birth; a UUIDv7 starts with its milliseconds.
create or replace function actum.month_floor(p_at timestamptz) returns uuid language sql immutable as
$$ select (lpad(to_hex((extract(epoch from p_at) * 1000)::bigint), 12, '0')
           || '00000000000000000000')::uuid $$;

create or replace function actum.ensure_partitions(p_months integer) returns integer
language plpgsql as
$$
declare
    start timestamptz := date_trunc('month', actum.now(), 'UTC');
    name text;
    n integer := 0;
begin
    for i in 0 .. p_months loop
        name := 'events_' || to_char((start + make_interval(months => i)) at time zone 'UTC', 'YYYY_MM');
        if to_regclass('actum.' || name) is null then
            execute format('create table actum.%I partition of actum.events for values from (%L) to (%L)',
                           name, actum.month_floor(start + make_interval(months => i)),
                           actum.month_floor(start + make_interval(months => i + 1)));
            -- Row triggers come with the partition; this one, for each statement, does not.
            execute format('create trigger events_kept before truncate on actum.%I for each statement '
                           'execute function actum.refuse(%L)', name, 'a change of history');
            n := n + 1;
        end if;
    end loop;
    return n;
end
$$;
