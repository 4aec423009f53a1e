"""Samples of secrets as vendors document and show them, written down without the table's forms.

They are made by functions of their own, so that a mistake in the table is not one here as well.
None was ever valid.
"""

from __future__ import annotations

import base64
import json
import random
import string
import uuid
from collections.abc import Callable
from urllib.parse import quote

Lot = random.Random
Make = Callable[[Lot], str]

DIGITS = string.digits
HEX = "0123456789abcdef"
LOW = string.ascii_lowercase + DIGITS
UP = string.ascii_uppercase + DIGITS
B62 = string.ascii_letters + DIGITS
URL = B62 + "-_"
B64 = B62 + "+/"
BASE32 = string.ascii_uppercase + "234567"
PASSWORD = B62 + "!#%^*+.~_-"


def draw(lot: Lot, letters: str, count: int) -> str:
    """Return characters drawn by lot; the first and the last are letters or digits."""
    drawn = lot.choices(letters, k=count)
    plain = [letter for letter in letters if letter.isalnum()]
    drawn[0], drawn[-1] = lot.choice(plain), lot.choice(plain)
    return "".join(drawn)


def write(form: str) -> Make:
    """Return what makes samples of a template: ``%h32`` stands for 32 hexadecimal digits."""
    letters = {"d": DIGITS, "h": HEX, "l": LOW, "u": UP, "a": B62, "w": URL, "b": B64, "t": BASE32}

    def make(lot: Lot) -> str:
        parts = form.split("%")
        made = parts[0]
        for part in parts[1:]:
            if part[0] == "U":
                made += str(uuid.UUID(int=lot.getrandbits(128), version=4)) + part[1:]
                continue
            digits = len(part[1:]) - len(part[1:].lstrip(DIGITS))
            made += draw(lot, letters[part[0]], int(part[1 : 1 + digits])) + part[1 + digits :]
        return made.replace("`", "")  # keeps a count from running into digits behind it

    return make


def make_json_web_token(lot: Lot) -> str:
    claims = {"sub": draw(lot, DIGITS, 10), "name": "Ada", "iat": lot.randrange(10**9)}
    parts = (json.dumps({"alg": "HS256", "typ": "JWT"}), json.dumps(claims))
    encoded = (base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in parts)
    return ".".join((*encoded, draw(lot, URL, 43)))


def make_discord_token(lot: Lot) -> str:
    user = base64.b64encode(str(lot.randrange(3 * 10**17, 9 * 10**17)).encode()).decode()
    return f"{user}.{draw(lot, URL, 6)}.{draw(lot, URL, 38)}"


def make_docker_auth(lot: Lot) -> str:
    return base64.b64encode(f"ada:dckr_pat_{draw(lot, URL, 27)}".encode()).decode()


def make_key_block(kind: str) -> Make:
    def make(lot: Lot) -> str:
        body = "\\n".join(draw(lot, B64, 64) for _ in range(6))
        return f"-----BEGIN {kind}-----\\n{body}\\n-----END {kind}-----"

    return make


# Which form a vendor's secret has on its own: each must be found wherever it stands.
TOKENS: dict[str, Make] = {
    "Azure storage key": write("%b76+ASt%a6=="),
    "Azure Cosmos key": write("%b76`ACDb%a6=="),
    "Azure registry password": write("%b42+ACR%a6"),
    "Azure shared access signature": write("https://x.blob.core.windows.net/c?sv=1&sig=%a40"),
    "Firebase server key": write("AAAA%w7:APA91b%w134"),
    "Elastic Cloud key": write("essu_%b80"),
    "DataStax token": write("AstraCS:%a24:%h64"),
    "Gel key": write("nbwt1_%w120"),
    "GitLab routable token": write("glpat-%w27.01.%l9"),
    "Gitpod token": write("gitpod_pat_%a43"),
    "Vault token of old": write("s.%a24"),
    "WakaTime key": write("waka_%U"),
    "Inngest key": write("signkey-prod-%h64"),
    "Trigger.dev key": write("tr_prod_%a20"),
    "n8n key": write("n8n_api_%h40"),
    "Metabase key": write("mb_%b43="),
    "Retool key": write("retool_01%l24"),
    "LinkedIn secret": write("WPL_AP1.%a16.%a6=="),
    "WooCommerce key": write("ck_%h40"),
    "RunPod key": write("rpa_%u36%l6"),
    "Cursor key": write("key_%h64"),
    "Anyscale key": write("esecret_%l26"),
    "Brave key": write("BSA%w28"),
    "Nomic key": write("nk-%w43"),
    "Honeycomb ingest key": write("hcbik_01%l56"),
    "Datadog application key": write("ddapp_%a34"),
    "MailerSend key": write("mlsn.%h64"),
    "Nylas key": write("nyk_v0_%a64"),
    "JumpCloud key": write("jca_%a36"),
    "Salesforce refresh token": write("5Aep861%w80"),
    "Pushbullet token": write("o.%a32"),
    "Close key": write("api_%a22.%a22"),
    "ClickHouse secret": write("4b1d%a38"),
    "Mattermost webhook": write("https://chat.example.com/hooks/%l26"),
    "AWS access key": write("AKIA%t16"),
    "AWS temporary key": write("ASIA%t16"),
    "AWS Bedrock key": write("ABSK%b128"),
    "Google API key": write("AIzaSy%w33"),
    "Google OAuth token": write("ya29.a0%w120"),
    "Google OAuth secret": write("GOCSPX-%w28"),
    "Google refresh token": write("1//0%w60"),
    "Azure client secret": write("%a3`8Q~%a34"),
    "Azure DevOps token": write("%a76AZDO%a4"),
    "DigitalOcean token": write("dop_v1_%h64"),
    "Heroku key": write("HRKU-AA%w58"),
    "Fly.io token": write("fm2_%b200"),
    "Vercel token": write("vcp_%a56"),
    "Netlify token": write("nfp_%a36"),
    "Render key": write("rnd_%a32"),
    "Cloudflare Origin CA key": write("v1.0-%h24-%h146"),
    "Alibaba access key": write("LTAI5t%a18"),
    "Scaleway access key": write("SCW%u17"),
    "GitHub personal token": write("ghp_%a36"),
    "GitHub app token": write("ghs_%a36"),
    "GitHub refresh token": write("ghr_%a76"),
    "GitHub fine-grained token": write("github_pat_%a22_%a59"),
    "GitLab token": write("glpat-%w20"),
    "GitLab deploy token": write("gldt-%w20"),
    "GitLab runner token": write("glrt-%w20"),
    "GitLab trigger token": write("glptt-%h40"),
    "Bitbucket app password": write("ATBB%a24%u8"),
    "Atlassian API token": write("ATATT3xFfGF0%w160=%u8"),
    "Sourcegraph token": write("sgp_%h16_%h40"),
    "npm token": write("npm_%a36"),
    "PyPI token": write("pypi-AgEIcHlwaS5vcmc%w150"),
    "RubyGems key": write("rubygems_%h48"),
    "Docker token": write("dckr_pat_%w27"),
    "NuGet key": write("oy2%l43"),
    "CircleCI token": write("CCIPAT_%a22_%h40"),
    "Buildkite token": write("bkua_%h40"),
    "SonarQube token": write("squ_%h40"),
    "Pulumi token": write("pul-%h40"),
    "Terraform Cloud token": write("%a14.atlasv1.%w67"),
    "Doppler token": write("dp.pt.%a43"),
    "Vault token": write("hvs.%w90"),
    "Vault batch token": write("hvb.%w140"),
    "age secret key": write("AGE-SECRET-KEY-1%u58"),
    "1Password service token": write("ops_eyJ%a250"),
    "Slack bot token": write("xoxb-%d12-%d13-%a24"),
    "Slack user token": write("xoxp-%d12-%d12-%d13-%h32"),
    "Slack app token": write("xapp-1-A%u10-%d13-%h64"),
    "Slack webhook": write("https://hooks.slack.com/services/T%u10/B%u10/%a24"),
    "Discord bot token": make_discord_token,
    "Discord webhook": write("https://discord.com/api/webhooks/1%d18/%w68"),
    "Telegram bot token": write("%d10:AA%w33"),
    "SendGrid key": write("SG.%w22.%w43"),
    "Mailgun key": write("key-%h32"),
    "Mailchimp key": write("%h32-us14"),
    "Twilio API key": write("SK%h32"),
    "Brevo key": write("xkeysib-%h64-%a16"),
    "Resend key": write("re_%a8_%a24"),
    "HubSpot token": write("pat-na1-%U"),
    "Facebook token": write("EAA%a180"),
    "Stripe secret key": write("sk_live_%a24"),
    "Stripe long secret key": write("sk_test_51%a97"),
    "Stripe restricted key": write("rk_live_%a99"),
    "Stripe webhook secret": write("whsec_%a32"),
    "Square access token": write("EAAA%w60"),
    "Square OAuth secret": write("sq0csp-%w43"),
    "Shopify token": write("shpat_%h32"),
    "Shopify shared secret": write("shpss_%h32"),
    "Razorpay key": write("rzp_live_%a14"),
    "Plaid token": write("access-sandbox-%U"),
    "OpenAI project key": write("sk-proj-%w120T3BlbkFJ%w28"),
    "OpenAI key": write("sk-%a20T3BlbkFJ%a20"),
    "OpenAI service account key": write("sk-svcacct-%w74T3BlbkFJ%w74"),
    "Anthropic key": write("sk-ant-api03-%w93AA"),
    "Anthropic admin key": write("sk-ant-admin01-%w93AA"),
    "OpenRouter key": write("sk-or-v1-%h64"),
    "HuggingFace token": write("hf_%a34"),
    "Replicate token": write("r8_%a37"),
    "Groq key": write("gsk_%a52"),
    "Perplexity key": write("pplx-%a48"),
    "xAI key": write("xai-%a80"),
    "LangSmith key": write("lsv2_pt_%h32_%h10"),
    "ElevenLabs key": write("sk_%h48"),
    "Pinecone key": write("pcsk_%a6_%a63"),
    "NVIDIA key": write("nvapi-%w64"),
    "Databricks token": write("dapi%h32"),
    "Supabase token": write("sbp_%h40"),
    "Supabase secret key": write("sb_secret_%w22_%w8"),
    "PlanetScale token": write("pscale_tkn_%w43"),
    "PlanetScale password": write("pscale_pw_%w43"),
    "Airtable token": write("pat%a14.%h64"),
    "Dropbox token": write("sl.%w136"),
    "New Relic user key": write("NRAK-%u27"),
    "New Relic license key": write("%h36NRAL"),
    "Grafana service token": write("glsa_%a32_%h8"),
    "Grafana Cloud token": write("glc_eyJ%a120"),
    "Sentry user token": write("sntryu_%h64"),
    "Sentry organization token": write("sntrys_eyJpYXQiO%a120_%w43"),
    "Dynatrace token": write("dt0c01.%t24.%t64"),
    "PostHog key": write("phx_%a43"),
    "Honeycomb key": write("hcaik_01%l56"),
    "Notion token": write("ntn_%a46"),
    "Notion older token": write("secret_%a43"),
    "Linear key": write("lin_api_%a40"),
    "Figma token": write("figd_%w40"),
    "Postman key": write("PMAK-%h24-%h34"),
    "Mapbox token": write("sk.eyJ%a80.%w22"),
    "Tailscale key": write("tskey-auth-k%a16-%a32"),
    "ngrok token": write("ak_2%a26"),
    "Okta header": write("SSWS 00%w40"),
    "Salesforce session": write("00D%a12!%w96"),
    "Sentry DSN": write("https://%h32@o%d6.ingest.sentry.io/%d7"),
    "JSON Web Token": make_json_web_token,
    "base64 of a login": make_docker_auth,
    "RSA key": make_key_block("RSA PRIVATE KEY"),
    "PKCS8 key": make_key_block("PRIVATE KEY"),
    "OpenSSH key": make_key_block("OPENSSH PRIVATE KEY"),
    "PostgreSQL URL": write("postgresql://app:%a16@db.example.net:5432/shop"),
    "MySQL URL": write("mysql://root:%a12@127.0.0.1:3306/shop"),
    "MongoDB URL": write("mongodb+srv://app:%a16@cluster0.ab1cd.mongodb.net/?retryWrites=true"),
    "Redis URL": write("redis://:%a20@cache.example.net:6379/0"),
    "AMQP URL": write("amqps://app:%a14@rabbit.example.net/vhost"),
    "SQL Server string": write("Server=tcp:db,1433;Database=x;User ID=sa;Password=%a12!;"),
    "Azure storage string": write(
        "DefaultEndpointsProtocol=https;AccountName=shop;AccountKey=%b86==;EndpointSuffix=x"
    ),
    "JDBC URL": write("jdbc:postgresql://db/shop?user=app&password=%a12"),
    "ClickHouse URL": write("clickhouse://default:%a16@ch.example.net:9440/shop"),
    "Snowflake URL": write("snowflake://ada:%a14@xy12345.eu-west-1/shop/public"),
    "Cloudinary URL": write("cloudinary://%d15:%w27@shop"),
}
# Which say too little: they come with a name, as their vendors' programs read them.
NAMED: dict[str, tuple[str, Make]] = {
    "AWS secret key": ("AWS_SECRET_ACCESS_KEY", write("%b40")),
    "AWS session token": ("AWS_SESSION_TOKEN", write("IQoJb3JpZ2luX2VjE%b240")),
    "Agora certificate": ("AGORA_APP_CERTIFICATE", write("%h32")),
    "Azure DevOps token of old": ("AZURE_DEVOPS_EXT_PAT", write("%l52")),
    "Code Climate id": ("CC_TEST_REPORTER_ID", write("%h64")),
    "Bunny key": ("BUNNY_API_KEY", write("%U%U")),
    "Zhipu key": ("ZHIPU_API_KEY", write("%h32.%a16")),
    "a vendor without a row": ("SEGMENT_WRITE_KEY", write("%a32")),
    "Apple password": (
        "APPLE_APP_SPECIFIC_PASSWORD",
        lambda lot: "-".join(draw(lot, string.ascii_lowercase, 4) for _ in range(4)),
    ),
    "Twilio token": ("TWILIO_AUTH_TOKEN", write("%h32")),
    "Datadog API key": ("DD_API_KEY", write("%h32")),
    "Datadog application key": ("DATADOG_APP_KEY", write("%h40")),
    "Auth0 secret": ("AUTH0_CLIENT_SECRET", write("%w64")),
    "Okta token": ("OKTA_API_TOKEN", write("00%w40")),
    "Cloudflare token": ("CLOUDFLARE_API_TOKEN", write("%w40")),
    "Cloudflare global key": ("CLOUDFLARE_API_KEY", write("%h37")),
    "Snowflake password": ("SNOWFLAKE_PASSWORD", write("%a14")),
    "Mistral key": ("MISTRAL_API_KEY", write("%a32")),
    "Cohere key": ("COHERE_API_KEY", write("%a40")),
    "Heroku UUID key": ("HEROKU_API_KEY", write("%U")),
    "Algolia key": ("ALGOLIA_ADMIN_KEY", write("%h32")),
    "PagerDuty key": ("PAGERDUTY_API_KEY", write("u+%a18")),
    "Azure OpenAI key": ("AZURE_OPENAI_API_KEY", write("%h32")),
    "Hetzner token": ("HCLOUD_TOKEN", write("%a64")),
    "Linode token": ("LINODE_TOKEN", write("%h64")),
    "Fastly token": ("FASTLY_API_TOKEN", write("%w32")),
    "Splunk token": ("SPLUNK_HEC_TOKEN", write("%U")),
    "Zendesk token": ("ZENDESK_API_TOKEN", write("%a40")),
    "Trello token": ("TRELLO_TOKEN", write("%h64")),
    "Spotify secret": ("SPOTIFY_CLIENT_SECRET", write("%h32")),
    "Django key": ("SECRET_KEY", write("%a50")),
    "database password": ("DB_PASSWORD", lambda lot: draw(lot, PASSWORD, lot.randrange(8, 20))),
    "SMTP password": ("SMTP_PASS", write("%a16")),
    "signing key": ("JWT_SIGNING_KEY", write("%b43=")),
    "client secret": ("OAUTH_CLIENT_SECRET", write("%w32")),
    "webhook secret": ("WEBHOOK_SECRET", write("%h40")),
    "encryption key": ("ENCRYPTION_KEY", write("%b43=")),
}

POSITIONS: dict[str, Callable[[str], str]] = {
    "bare": lambda secret: secret,
    "sentence": lambda secret: f"I have put {secret} there for you, Ada.",
    "JSON in text": lambda secret: f'The answer was {{"id": 4, "data": "{secret}"}} at noon.',
    "YAML": lambda secret: f"jobs:\n  - name: build\n    with: {secret}\n    retries: 2\n",
    ".env": lambda secret: f'PORT=8080\nSETTING="{secret}"\nMODE=x\n',
    "shell": lambda secret: f"$ deploy --to production --using {secret} | tee log.txt",
    "URL": lambda secret: f"https://api.example.net/v2/items?limit=5&k={secret}&sort=asc",
    "header": lambda secret: f"Accept: */*\r\nX-Service: {secret}\r\nHost: example.net\r\n",
    "quoted URL": lambda secret: f"https://example.net/?v={quote(json.dumps(secret), safe='')}",
}
NAMED_POSITIONS: dict[str, Callable[[str, str], str]] = {
    "assignment": lambda name, secret: f'{name} = "{secret}"',
    "sentence": lambda name, secret: f"The {name} is {secret}, do not lose it.",
    "JSON": lambda name, secret: json.dumps({"region": "eu", name: secret}),
    "JSON in JSON": lambda name, secret: json.dumps({"out": json.dumps({name.lower(): secret})}),
    "YAML": lambda name, secret: f"env:\n  {name.lower()}: {secret}\n  debug: true\n",
    ".env": lambda name, secret: f"# settings\n{name}={secret}\nPORT=80\n",
    "shell": lambda name, secret: f"export {name}='{secret}' && ./run.sh",
    "flag": lambda name, secret: f"./run --{name.lower().replace('_', '-')}={secret} --verbose",
    "URL": lambda name, secret: f"https://example.net/?{name.lower()}={secret}&page=2",
    "header": lambda name, secret: f"X-{name.title().replace('_', '-')}: {secret}\r\nA: b",
    "XML": lambda name, secret: f"<{name.lower()}>{secret}</{name.lower()}>",
    "TOML": lambda name, secret: f"[service]\n{name.lower()} = '{secret}'\n",
    "Python": lambda name, secret: f'os.environ["{name}"] = "{secret}"',
    "words": lambda name, secret: f"The {name.replace('_', ' ').title()} is {secret} for now.",
    "YAML pair": lambda name, secret: f'env:\n  - name: {name}\n    value: "{secret}"\n',
    "JSON pair": lambda name, secret: json.dumps([{"name": name, "value": secret}], indent=2),
    "XML pair": lambda name, secret: f'<add key="{name}" value="{secret}" />',
    "Markdown": lambda name, secret: f"**{name.replace('_', ' ').title()}:** `{secret}`",
    "table": lambda name, secret: f"| {name} | `{secret}` |",
    "Dockerfile": lambda name, secret: f"ENV {name}={secret}",
    "camel case": lambda name, secret: (
        f"const {name.title().replace('_', '')[:1].lower()}"
        f'{name.title().replace("_", "")[1:]} = "{secret}";'
    ),
}
