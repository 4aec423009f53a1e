"""The table of secrets that have a form of their own: one row per kind, as text.

A row is ``kind = form | form``, or ``kind ~ word word = form | form`` for forms that say too little
by themselves: they count only behind one of the words (``datadog_api_key: ...``), in which a ``_``
may be a dash, a blank or nothing. Words of checks stand behind a semicolon.

A form is literal text with parts in ``<>``: an alphabet and a length.

    <b62 36>    36 letters and digits. Vendors lengthen their tokens without notice: a part of
                more than 8 characters is accepted from four fifths of its length on, and longer.
    <b62 36!>   exactly 36, and no letter or digit behind them
    <b62 8-40>  8 to 40         <b62 20+>  20 or more         <uuid>  a UUID

The alphabets: ``num`` digits, ``hex`` 0-9a-f, ``HEX`` 0-9a-fA-F, ``low`` a-z0-9, ``up`` A-Z0-9,
``b62`` a-zA-Z0-9, ``b62word`` b62 and ``_``, ``slack`` b62 and ``-``, ``url`` b62 and ``_-``,
``dot`` url and ``.=``, ``azid`` url and ``.~``, ``path`` url and ``/@.``, ``b64`` b62 and ``+/=``,
``pct`` b64 and ``%_-``, ``any`` what is printed, without
quotes and backslashes.

Checks: ``mixed`` letters and digits that are not words, ``crc32`` a checksum that, when it holds,
makes a word boundary in front unnecessary, ``anywhere`` no word boundary in front.

Facts come from the vendors' documentation. Tests make samples from the forms; none was ever valid.
"""

TABLE = r"""
# --- Clouds and hosting
aws.access_key_id = AKIA<up 16!> | ASIA<up 16!> | ABIA<up 16!> | ACCA<up 16!> | A3T<up 17!>
aws.session_token = FwoGZXIvYXdz<b64 60+> | IQoJb3JpZ2luX2Vj<b64 60+> | FQoGZXIvYXdz<b64 60+>
aws.bedrock_key = ABSK<b64 109> | bedrock-api-key-<b64 60+>
aws.mws_key = amzn.mws.<uuid>
aws.cognito_secret = amzn1.oa2-cs.v1.<hex 64>
google.api_key = AIza<url 35> | AQ.Ab8RN6<url 40>
google.oauth_token = ya29.<dot 20+>
google.oauth_secret = GOCSPX-<url 28>
google.refresh_token = 1//0<url 40+>
azure.client_secret = <azid 3><num 1!>Q~<azid 31-40>
azure.devops_token = <b62 52-80>AZDO<b62 4!>
azure.cognitive_key = <b62 40-60>JQQJ99<b62 20-60>
azure.storage_key = AccountKey=<b64 86> | <b64 76!>+ASt<b64 8!>
azure.cosmos_key = <b64 76!>ACDb<b64 6!>==
azure.shared_access_key = SharedAccessKey=<b64 43>
azure.sas_signature = &sig=<pct 43> | ?sig=<pct 43>
azure.app_config = Endpoint=https://<dot 3-80>;Id=<dot 4-40>;Secret=<b64 40>
azure.function_key = <url 40-60>AzFu<pct 8+>
azure.search_key = <b62 40-60>AzSe<b62 6+>
azure.container_registry = <b64 42!>+ACR<b64 6!>
alibaba.access_key = LTAI<b62 20>
tencent.secret_id = AKID<b62 32>
baidu.api_key = bce-v3/ALTAK-<b62 21>/<hex 40>
volcengine.access_key = AKLT<b62 40>
yandex.api_key = AQVN<url 35> | YCAJE<url 20> | YCN<url 36> | YCM<url 36>
yandex.token = t1.<url 60+>.<url 86> | y0_<url 50+>
scaleway.access_key = SCW<up 17!>
exoscale.api_key = EXO<hex 24-32!>
digitalocean.token = dop_v1_<hex 64> | doo_v1_<hex 64> | dor_v1_<hex 64>
digitalocean.spaces_key = DO00<up 16!>
backblaze.application_key = K001<b64 27!> | K002<b64 27!> | K003<b64 27!> | K004<b64 27!>
    | K005<b64 27!>
cloudflare.origin_ca_key = v1.0-<hex 24>-<hex 146>
cloudflare.token = cfut_<b62 40> | cfat_<b62 40> | cfk_<b62 40>
heroku.api_key = HRKU-AA<url 58> | HRKU-<uuid>
flyio.token = fo1_<url 43> | fm1_<b64 60+> | fm1a_<b64 60+> | fm1r_<b64 60+> | fm2_<b64 60+>
render.api_key = rnd_<b62 28>
vercel.token = vcp_<b62 56> | vci_<b62 56> | vca_<b62 56> | vcr_<b62 56> | vck_<b62 56>
    | vercel_blob_rw_<b62 16>_<b62 30>
netlify.token = nfp_<b62 36> | nfo_<b62 36> | nfc_<b62 36> | nfu_<b62 36> | nfb_<b62 36>
scalingo.token = tk-us-<url 48>
aiven.password = AVNS_<url 19>
firebase.server_key = AAAA<url 7!>:APA91b<url 120+>
upcloud.token = ucat_<b62 26>
zuplo.key = zpka_<low 32>_<hex 8>
planet.key = PLAK<hex 32>

# --- Code hosts, packages, CI
github.token = ghp_<b62 36> | gho_<b62 36> | ghu_<b62 36> | ghs_<b62 36> | ghr_<b62 36> ; crc32
github.fine_grained_token = github_pat_<b62 22>_<b62 59> | github_pat_<b62word 36+>
gitlab.routable_token = glpat-<url 27+>.<low 2>.<low 9> | glrt-t<num 1>_<url 20> | glrtr-<url 20>
gitlab.token = glpat-<url 20> | gldt-<url 20> | glrt-<url 20> | glft-<url 20> | glsoat-<url 20>
    | glptt-<hex 40> | glimt-<url 25> | glagent-<url 50> | gloas-<hex 64> | glcbt-<dot 20>
    | glffct-<url 20> | glwt-<url 20>
gitlab.runner_registration = GR1348941<url 20>
gitlab.session = _gitlab_session=<hex 32>
bitbucket.app_password = ATBB<b62 32>
bitbucket.repository_token = ATCTT3<dot 100+>
atlassian.api_token = ATATT3<dot 100+>
sourcegraph.token = sgp_<hex 40> | sgp_<hex 16>_<hex 40> | sgp_local_<hex 40> | slk_<hex 64>
    | sgd_<hex 64>
npm.token = npm_<b62 36> ; crc32
pypi.token = pypi-AgEIcHlwaS5vcmc<url 50+> | pypi-AgENdGVzdC5weXBpLm9yZw<url 50+> | pypi-<url 85+>
rubygems.token = rubygems_<hex 48>
crates.token = cio<b62 32!> ; mixed
docker.token = dckr_pat_<url 27> | dckr_oat_<url 32>
nuget.key = oy2<low 43!>
clojars.token = CLOJARS_<low 60>
packagist.token = packagist_ack_<hex 60> | packagist_uut_<hex 60> | packagist_out_<hex 60>
jfrog.token = AKCp<b62 69> | cmVmdGtu<b62 56>
circleci.token = CCIPAT_<b62 22>_<hex 40> | CCIPRJ_<b62 22>_<hex 40>
buildkite.token = bkua_<hex 40> | bkct_<b62 40> | bkaj_<dot 60+> | bkpat_<b62 40>
sonar.token = sqp_<hex 40> | squ_<hex 40> | sqa_<hex 40> | sqb_<hex 40>
octopus.key = API-<up 26!> ; mixed
harness.token = pat.<url 22>.<hex 24>.<b62 20> | sat.<url 22>.<hex 24>.<b62 20>
pulumi.token = pul-<hex 40>
terraform.token = <b62 14>.atlasv1.<url 60+>
infracost.key = ico-<b62 32>
snyk.token = snyk_uat.<hex 8>.<dot 40+> | snyk_sat.<hex 8>.<dot 40+>
endorlabs.key = endr+<url 20>
prefect.token = pnu_<b62 36> | pnb_<b62 36> | pnt_<b62 36>
dbt.token = dbtc_<url 40> | dbtu_<url 40> | dbts_<url 40>
gitpod.token = gitpod_pat_<dot 40>
inngest.key = signkey-prod-<hex 64> | signkey-test-<hex 64> | signkey-branch-<hex 64>
trigger.key = tr_dev_<b62 20> | tr_prod_<b62 20> | tr_stg_<b62 20> | tr_preview_<b62 20>
n8n.key = n8n_api_<hex 40>
openshift.token = sha256~<url 43>

# --- Chat, mail, messages
slack.token = xoxb-<slack 20+> | xoxp-<slack 20+> | xoxa-<slack 20+> | xoxr-<slack 20+>
    | xoxs-<slack 20+> | xoxo-<slack 20+> | xoxc-<slack 20+> | xoxd-<pct 40+> | xoxe-<slack 20+>
    | xoxe.xoxp-<slack 20+> | xoxe.xoxb-<slack 20+> | xwfp-<slack 20+>
slack.app_token = xapp-<num 1>-<up 9-12>-<num 10-14>-<hex 64> | xapp-<slack 30+>
slack.webhook = hooks.slack.com/services/<path 12+> | hooks.slack.com/workflows/<path 12+>
    | hooks.slack.com/triggers/<path 12+> | hooks.slack-gov.com/services/<path 12+> ; anywhere
discord.bot_token = M<b62 23-27>.<url 6!>.<url 27+> | M<b62 23-27>.<url 7!>.<url 27+>
    | N<b62 23-27>.<url 6!>.<url 27+> | N<b62 23-27>.<url 7!>.<url 27+>
    | O<b62 23-27>.<url 6!>.<url 27+> | O<b62 23-27>.<url 7!>.<url 27+> ; mixed
discord.webhook = discord.com/api/webhooks/<num 17-20>/<url 60>
    | discordapp.com/api/webhooks/<num 17-20>/<url 60> ; anywhere
telegram.bot_token = <num 6-16>:AA<url 33> | <num 8-12>:A<url 34!>
teams.webhook = webhook.office.com/webhookb2/<path 60> ; anywhere
google.chat_webhook = chat.googleapis.com/v1/spaces/<url 8-20>/messages?key=<dot 20+> ; anywhere
mattermost.webhook = /hooks/<low 26!> ; mixed
matrix.token = syt_<url 6+>_<b62 20>_<b62 6> | mct_<b62 30>
sendgrid.key = SG.<url 22>.<url 43>
mailgun.key = key-<hex 32!> | pubkey-<hex 32!>
mailgun.signing_key = <hex 32!>-<hex 8!>-<hex 8!>
mailchimp.key = <hex 32!>-us<num 1-2!>
mandrill.key = md-<url 22!> ; mixed
brevo.key = xkeysib-<hex 64>-<b62 16> | xsmtpsib-<hex 64>-<b62 16>
resend.key = re_<b62 8!>_<b62 24!>
twilio.api_key = SK<hex 32!>
telnyx.key = KEY<HEX 32>_<url 22>
mailersend.key = mlsn.<hex 64>
nylas.key = nyk_v0_<b62 60> | nyk_<b62 60>
pushbullet.token = o.<b62 32!> ; mixed
onesignal.key = os_v2_app_<low 90+> | os_v2_org_<low 90+>
pubnub.secret_key = sec-c-<b64 44>
ably.key = <url 6!>.<url 6!>:<url 43!> ; mixed
courier.key = pk_prod_<up 28> | dk_prod_<up 28>
klaviyo.key = pk_<hex 34!>
hubspot.token = pat-na1-<uuid> | pat-na2-<uuid> | pat-eu1-<uuid> | pat-ap1-<uuid>
intercom.token = dG9rO<b64 54>
facebook.token = EAA<b62 90+> | EAACEdEose0cBA<b62 20+>
facebook.app_token = <num 15-16>|<url 27>
instagram.token = IGQV<url 80+> | IGQW<url 80+> | IGAA<b62 80+>
linkedin.token = AQV<url 100+> | AQX<url 100+> | WPL_AP1.<b62 16>.<b64 6>
twitter.bearer_token = AAAAAAAAAAAAAAAAAAAA<pct 80-130!> ; mixed
tiktok.token = act.<b62 60+>
beamer.key = b_<url 44!> ; mixed
frameio.token = fio-u-<url 64>

# --- Payment, commerce
stripe.key = sk_live_<b62 24> | sk_test_<b62 24> | rk_live_<b62 24> | rk_test_<b62 24>
    | sk_prod_<b62 24> | rk_prod_<b62 24> | pk_live_<b62 24> | pk_test_<b62 24>
    | sk_org_live_<b62 40> | sk_org_test_<b62 40>
stripe.webhook_secret = whsec_<b64 32>
square.token = EAAA<url 60!> | sq0atp-<url 22> | sq0csp-<url 43> | sq0idp-<url 22>
shopify.token = shpat_<HEX 32> | shpca_<HEX 32> | shppa_<HEX 32> | shpss_<HEX 32>
    | shptka_<HEX 32> | shpua_<HEX 32> | shpit_<HEX 32>
braintree.token = access_token$production$<low 16>$<hex 32> | access_token$sandbox$<low 16>$<hex 32>
razorpay.key = rzp_live_<b62 14> | rzp_test_<b62 14>
adyen.key = AQE<b64 60+>-<b64 30+>-<any 12+> | AQE<b62 60+>
plaid.token = access-sandbox-<uuid> | access-development-<uuid> | access-production-<uuid>
flutterwave.key = FLWSECK_TEST-<HEX 32>-X | FLWSECK-<HEX 32>-X | FLWPUBK_TEST-<HEX 32>-X
    | FLWPUBK-<HEX 32>-X | FLWSECK_TEST<HEX 12> | FLWSECK-<b62 32>
mollie.key = live_<b62 30!> | test_<b62 30!> ; mixed
gocardless.token = live_<url 40!> | sandbox_<url 40!> ; mixed
lob.key = live_<hex 35!> | test_<hex 35!> | live_pub_<hex 31> | test_pub_<hex 31>
mercadopago.token = APP_USR-<num 12-20>-<num 6>-<hex 32> | APP_USR-<uuid>
    | TEST-<num 12-20>-<num 6>-<hex 32>
midtrans.key = Mid-server-<url 24> | SB-Mid-server-<url 24>
paddle.key = pdl_live_apikey_<b62word 50+> | pdl_sdbx_apikey_<b62word 50+>
polar.token = polar_oat_<b62 32> | polar_pat_<b62 32>
easypost.key = EZAK<b62 54> | EZTK<b62 54>
shippo.token = shippo_live_<hex 40> | shippo_test_<hex 40>
duffel.token = duffel_live_<url 43> | duffel_test_<url 43>
coinbase.key_name = organizations/<uuid>/apiKeys/<uuid>
xendit.key = xnd_production_<b62 40> | xnd_development_<b62 40>
omise.key = skey_test_<low 19> | skey_<low 19>
woocommerce.key = ck_<hex 40!> | cs_<hex 40!>
paystack.key = sk_live_<hex 40> | sk_test_<hex 40>

# --- Model providers and their tools
openai.key = sk-proj-<url 40+> | sk-svcacct-<url 40+> | sk-admin-<url 40+> | sk-None-<url 40+>
    | sk-<b62 20>T3BlbkFJ<b62 20> | sk-<url 20+> ; mixed
anthropic.key = sk-ant-<url 20+>
openrouter.key = sk-or-v1-<hex 64> | sk-or-<url 20+>
langfuse.key = sk-lf-<uuid> | pk-lf-<uuid>
helicone.key = sk-helicone-<url 20+> | pk-helicone-<url 20+>
huggingface.token = hf_<b62 34> | api_org_<b62 34>
replicate.token = r8_<b62 37>
groq.key = gsk_<b62 52>
perplexity.key = pplx-<b62 48>
xai.key = xai-<b62 80>
together.key = tgp_v1_<url 43>
fireworks.key = fw_<b62 22!> | fw_<b62 24!> | fw-<b62 24!> ; mixed
langsmith.key = lsv2_pt_<hex 32>_<hex 10> | lsv2_sk_<hex 32>_<hex 10> | ls__<hex 32>
wandb.key = wandb_v1_<url 40+>
cerebras.key = csk-<low 48>
nvidia.key = nvapi-<url 64>
elevenlabs.key = sk_<hex 48>
voyage.key = pa-<url 43!> ; mixed
jina.key = jina_<url 60>
tavily.key = tvly-<url 32> | tvly-dev-<url 32> | tvly-prod-<url 32>
firecrawl.key = fc-<hex 32!>
e2b.key = e2b_<hex 40>
modal.token = ak-<b62 22!> | as-<b62 22!> ; mixed
runpod.key = rpa_<b62 40+>
cursor.key = key_<hex 64!>
anyscale.key = esecret_<low 26>
brave.key = BSA<url 28!> ; mixed
nomic.key = nk-<url 43!> ; mixed
llamaindex.key = llx-<b62 48>
mem0.key = m0-<b62 40!> ; mixed
apify.token = apify_api_<b62 36>
browserbase.key = bb_live_<url 27> | bb_test_<url 27>
kaggle.token = KGAT_<hex 32>
pinecone.key = pcsk_<b62 6>_<b62 60> | pcsk_<b62word 40+>
friendli.token = flp_<b62 46>
novita.key = sk_<url 43!> ; mixed
dify.key = app-<b62 24!> | dataset-<b62 24!> ; mixed
coze.token = pat_<b62 64> | sat_<b62 64>
rapidapi.key = <b62 10>msh<b62 15>p1<b62 6>jsn<b62 12>

# --- Databases, storage
databricks.token = dapi<hex 32> | dkea<hex 32> | dose<hex 32> | dosl<hex 32>
supabase.key = sbp_<hex 40> | sbp_v0_<hex 40> | sb_secret_<url 31> | sbp_oauth_<hex 40>
planetscale.token = pscale_tkn_<dot 32-64> | pscale_oauth_<dot 32-64> | pscale_pw_<dot 32-64>
neon.key = napi_<low 60+> | npg_<b62 12+>
mongodb.service_secret = mdb_sa_sk_<url 40>
cockroachdb.key = CCDB1_<b62 22>_<b62 40>
confluent.secret = cflt<b64 60>
airtable.token = pat<b62 14!>.<hex 64>
contentful.token = CFPAT-<url 43>
sanity.token = sk<b62 80+>
storyblok.token = <b62 22>tt-<num 4-8>-<url 20>
dropbox.token = sl.<url 130+> | sl.u.<url 120+> | sl.B<url 100+>
xata.key = xau_<b62 40>
fauna.secret = fnA<url 37>
datastax.token = AstraCS:<b62 24>:<hex 64>
clickhouse.secret = 4b1d<b62 38!> ; mixed
elastic.cloud_key = essu_<b64 40+>
gel.secret_key = nbwt1_<url 60+> | nbwt_<url 60+> | edbt1_<url 60+> | edbt_<url 60+>
snowflake.token = ver:1-hint:<num 4-20>-ETMsDg<b64 60+>

# --- Observability, product data
newrelic.key = NRAK-<up 27> | NRII-<url 32> | NRJS-<hex 19> | NRRA-<hex 42> | NRIQ-<url 32>
    | NRSP-<low 30> | NRBR-<hex 19> | NRAA-<hex 27> | <hex 32-36>NRAL
datadog.token = ddapp_<b62 34> | ddpat_<b62 60>
grafana.token = glsa_<b62 32>_<HEX 8> | glc_<b64 32+> | eyJrIjoi<b64 60+>
sentry.token = sntrys_<pct 60+> | sntryu_<hex 64>
honeycomb.key = hcaik_<low 58> | hcxik_<low 58> | hcxlk_<low 26> | hcaic_<low 58>
    | hcbik_<low 58> | hccik_<low 58> | hcdik_<low 58>
dynatrace.token = dt0c01.<up 24>.<up 64> | dt0s01.<up 8-24>.<up 64> | dt0s16.<up 8-24>.<up 64>
axiom.token = xaat-<uuid> | xapt-<uuid>
posthog.key = phc_<b62 43> | phx_<b62 43> | phs_<b62 43>
segment.token = sgp_<b62 64>
launchdarkly.key = api-<uuid> | sdk-<uuid> | mob-<uuid>
statsig.key = secret-<b62 43!> | console-<b62 43!> ; mixed
configcat.key = configcat-sdk-1/<url 22>/<url 22>
flagsmith.key = ser.<b62 22!> ; mixed
unleash.token = *:development.<hex 56> | *:production.<hex 56> | default:development.<hex 56>
    | default:production.<hex 56>
logfire.token = pylf_v1_us_<b62 43> | pylf_v1_eu_<b62 43>
datadog.client_token = pub<hex 32!>
tinybird.token = p.eyJ<dot 60+>
checkly.key = cu_<hex 32> | sv_<hex 32>
maxmind.key = <b62 6!>_<b62 29!>_mmk

# --- Work, design, maps
notion.token = ntn_<b62 46> | secret_<b62 43!> ; mixed
linear.key = lin_api_<b62 40> | lin_oauth_<b62 40> | lin_wh_<b62 40>
figma.token = figd_<url 40> | figo_<url 40> | figu_<url 40> | figdr_<url 40> | figor_<url 40>
    | figur_<url 40>
postman.key = PMAK-<hex 24>-<hex 34> | PMAT-<up 26>
asana.token = 1/<num 13-19>:<hex 32> | 0/<num 13-19>:<hex 32> | 2/<num 13-19>/<num 13-19>:<hex 32>
    | 1/<num 13-19>/<num 13-19>:<hex 32>
trello.token = ATTA<hex 64>
clickup.token = pk_<num 6-10>_<up 32>
typeform.token = tfp_<dot 44>
mapbox.token = sk.eyJ<url 40+>.<url 22> | pk.eyJ<url 40+>.<url 22> | tk.eyJ<url 40+>.<url 22>
adobe.secret = p8e-<url 32>
readme.key = rdme_<low 70>
adafruit.key = aio_<b62 28>
intra42.secret = s-s4t2ud-<hex 64> | s-s4t2af-<hex 64>
settlemint.token = sm_aat_<b62 16> | sm_pat_<b62 16> | sm_sat_<b62 16>
salesforce.session = 00D<b62 12>!<dot 80+> | 5Aep861<dot 60+>
zapier.webhook = hooks.zapier.com/hooks/catch/<path 12+> ; anywhere
close.key = api_<b62 22!>.<b62 22!> ; mixed
metabase.key = mb_<b64 44!> ; mixed
retool.key = retool_01<low 24>
wakatime.key = waka_<uuid>
calcom.key = cal_live_<hex 32> | cal_test_<hex 32> | cal_<hex 32>
doppler.token = dp.pt.<b62 43> | dp.ct.<b62 43> | dp.sa.<b62 43> | dp.scim.<b62 43>
    | dp.audit.<b62 43> | dp.st.<b62 40+> | dp.st.<url 1-40>.<b62 40+>
hashicorp.vault_token = hvs.<url 24+> | hvb.<url 60+> | hvr.<url 60+>
vault.token = s.<b62 24!> ; mixed
onepassword.token = ops_eyJ<pct 200+>
onepassword.secret_key = A3-<up 6>-<up 6>-<up 5>-<up 5>-<up 5>-<up 5>
    | A3-<up 6>-<up 11>-<up 5>-<up 5>-<up 5>
infisical.token = st.<hex 24>.<hex 32>.<hex 32>
bitwarden.token = 0.<uuid>.<b62 30>:<b64 24>

# --- Identity, networks, keys
jumpcloud.key = jca_<b62 36>
tailscale.key = tskey-auth-<url 20+> | tskey-api-<url 20+> | tskey-client-<url 20+>
    | tskey-webhook-<url 20+> | tskey-scim-<url 20+> | tskey-<url 24+>
ngrok.key = ngrok_<b62 40> | ak_2<b62 26!> | cr_2<b62 26!>
defined.key = dnkey-<url 26>-<url 52>
authress.key = sc_<low 5-30>.<low 4-6>.acc-<low 10-32>.<b64 30+>
    | authress_<low 5-30>.<low 4-6>.acc_<low 10-32>.<b64 30+>
    | ext_<low 5-30>.<low 4-6>.acc_<low 10-32>.<b64 30+>
stytch.secret = secret-live-<dot 36> | secret-test-<dot 36>
clerk.key = sk_live_<b62 42> | sk_test_<b62 42>
workos.key = sk_live_a2V5<b62 40+> | sk_test_a2V5<b62 40+>
ory.token = ory_st_<b62 32> | ory_at_<url 43> | ory_rt_<url 43> | ory_pat_<b62 32>
    | ory_apikey_<b62 32>
age.secret_key = AGE-SECRET-KEY-1<up 58>
okta.token = SSWS 00<url 40>
kubernetes.bootstrap_token = kubeadm join <dot 3-80>:<num 2-5> --token <low 6!>.<low 16!>

# --- What is a secret only behind the name of its vendor
adobe.client_id ~ adobe = <HEX 32!>
agora.certificate ~ agora = <hex 32!>
airtable.key ~ airtable = key<b62 14!> | <b62 17!>
algolia.key ~ algolia = <HEX 32!>
alibaba.secret ~ alibaba aliyun = <b62 30!>
amplitude.key ~ amplitude = <hex 32!>
artifactory.key ~ artifactory jfrog = <b62 73!> | <b62 64!>
asana.secret ~ asana = <low 32!> | <num 16!>
assemblyai.key ~ assembly_ai = <hex 32!>
auth0.secret ~ auth0 = <url 64!>
aws.secret_access_key ~ aws_secret secret_access_key = <b64 40!>
azure.devops_pat ~ azure_devops vsts = <low 52!>
bitbucket.secret ~ bitbucket = <url 64!> | <b62 32!>
bitfinex.key ~ bitfinex binance bittrex kraken kucoin coinbase = <pct 32-90!>
browserstack.key ~ browserstack saucelabs lambdatest = <b62 20!> | <uuid> | <b62 50!>
bunny.key ~ bunny bunnycdn = <uuid> | <uuid><uuid>
bugsnag.key ~ bugsnag rollbar raygun airbrake = <hex 32!>
cloudflare.key ~ cloudflare = <url 40!> | <hex 37!>
cloudinary.secret ~ cloudinary = <url 27!>
codeclimate.id ~ code_climate cc_test_reporter = <hex 64!>
codecov.token ~ codecov codacy coveralls = <uuid> | <b62 32!>
cohere.token ~ cohere = <b62 40!>
confluent.key ~ confluent kafka = <b62 16!> | <b64 64!>
contentful.key ~ contentful = <url 43!>
datadog.key ~ datadog dd_api_key dd_app_key dd_application_key = <hex 32!> | <hex 40!>
    | <low 40!>
deepgram.key ~ deepgram = <hex 40!>
deepseek.key ~ deepseek = <hex 32!>
digitalocean.secret ~ digitalocean = <hex 64!>
discord.client_secret ~ discord = <url 32!> | <hex 64!>
droneci.token ~ droneci drone_token drone = <low 32!>
dropbox.secret ~ dropbox = <low 15!> | <url 60+>
elastic.key ~ elasticsearch elastic_api elastic = <b64 40-80!>
etsy.key ~ etsy = <low 24!>
facebook.secret ~ facebook fb_app = <hex 32!>
fastly.key ~ fastly = <url 32!>
finicity.key ~ finicity = <hex 32!> | <low 20!>
finnhub.key ~ finnhub = <low 20!> | <low 40!>
flickr.key ~ flickr = <low 32!>
freshbooks.token ~ freshbooks = <low 64!>
freshdesk.key ~ freshdesk freshservice = <b62 20!>
gitter.token ~ gitter = <url 40!>
gitea.secret ~ gitea forgejo codeberg gogs = <hex 40!>
github.secret ~ github_secret github_client_secret github_token github_oauth = <hex 40!>
heroku.token ~ heroku = <uuid>
hetzner.token ~ hetzner hcloud = <b62 64!>
hubspot.key ~ hubspot = <uuid>
ibm.key ~ ibm bluemix softlayer = <url 44!>
intercom.key ~ intercom = <url 60!>
jenkins.token ~ jenkins = <hex 34!> | <hex 32!>
jira.token ~ jira confluence atlassian = <b62 24!>
launchdarkly.token ~ launchdarkly = <url 40!>
linkedin.secret ~ linkedin = <b62 16!> | <b62 14!>
linode.token ~ linode vultr = <hex 64!> | <up 36!>
looker.key ~ looker = <b62 20!> | <b62 24!>
mailchimp.token ~ mailchimp = <hex 32!>
mailgun.token ~ mailgun = <hex 32!>
mailjet.key ~ mailjet sparkpost postmark = <hex 32!> | <hex 40!> | <uuid>
mattermost.token ~ mattermost = <low 26!>
messagebird.key ~ message_bird = <b62 25!> | <uuid>
meraki.key ~ meraki = <hex 40!>
mistral.key ~ mistral = <b62 32!>
mixpanel.secret ~ mixpanel = <hex 32!>
netlify.secret ~ netlify = <url 40-46!>
newrelic.license ~ new_relic = <hex 40!> | <b62 64!>
nytimes.key ~ nytimes new_york_times = <url 32!>
okta.secret ~ okta = 00<dot 40!> | <url 40!>
openweather.key ~ openweather openweathermap = <hex 32!>
opsgenie.key ~ opsgenie = <uuid>
pagerduty.key ~ pager_duty pd_api = <url 18-20!> | u+<url 18!> | y_<url 18!> | <hex 32!>
paypal.secret ~ paypal braintree = <url 80!> | <hex 32!>
plaid.secret ~ plaid = <hex 30!> | <hex 24!>
plivo.token ~ plivo vonage nexmo = <url 40!> | <b62 16!>
privateai.key ~ private_ai = <low 32!>
pusher.secret ~ pusher = <hex 20!>
railway.token ~ railway = <uuid>
sendbird.token ~ sendbird = <hex 40!> | <uuid>
sentry.secret ~ sentry = <hex 64!> | <hex 32!>
serpapi.key ~ serpapi serper = <hex 64!> | <hex 40!>
shodan.key ~ shodan virustotal censys = <b62 32!> | <hex 64!>
snowflake.key ~ snowflake = <b64 40+>
snyk.key ~ snyk = <uuid>
splunk.token ~ splunk hec_token = <uuid>
spotify.secret ~ spotify = <hex 32!>
square.secret ~ squarespace square_access = <uuid> | <url 60+>
stability.key ~ stability clarifai roboflow = <hex 32!> | <b62 20!>
sumologic.key ~ sumo sumologic = su<b62 12!> | <low 64!> | <b62 14!>
tableau.token ~ tableau = <b64 22-24!>
tencent.secret_key ~ tencent qcloud = <b62 32!>
todoist.token ~ todoist = <hex 40!>
together.token ~ together = <hex 64!>
travis.token ~ travis = <url 22!> | <low 22!>
trello.key ~ trello = <hex 32!> | <hex 64!> | <b62 32!>
twilio.token ~ twilio = <hex 32!>
twitch.token ~ twitch = <low 30!>
twitter.key ~ twitter = <b62 25!> | <b62 50!> | <b62 35-44!> | <num 10-20>-<b62 40!>
upstash.secret ~ upstash = <b64 40+>
vault.legacy_token ~ vault = s.<b62 24!> | <uuid>
vercel.secret ~ vercel = <b62 24!>
wandb.token ~ wandb weights_and_biases = <hex 40!>
yandex.secret ~ yandex = <b62 32!>
zhipu.key ~ zhipu bigmodel zai = <hex 32!>.<b62 16!>
zendesk.token ~ zendesk = <b62 40!>
zoom.secret ~ zoom = <b62 32!>
zulip.key ~ zulip = <b62 32!>
sidekiq.secret ~ contribsys__com sidekiq = <hex 8!>:<hex 8!>
"""
